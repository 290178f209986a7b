"""Tars that are named one by one, as a folder of them.

In: the path or URL of a tar, with brace ranges as webdataset reads them, or a command that prints a
tar. Out: a folder of the cache, with links to the tars of this machine and copies of all others.
Never: a command, unless the caller says that a person typed it.
"""

import hashlib
import logging
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from webdataset.gopen import gopen
from webdataset.shardlists import expand_urls

from vlmtune.errors import UserError, counted, reason
from vlmtune.storage.files import reading, regular, write_atomically
from vlmtune.storage.folder import locked
from vlmtune.storage.progress import progress
from vlmtune.storage.remote.address import Address, is_remote, join
from vlmtune.storage.remote.download import (
    DownloadError,
    Patience,
    check_content,
    download,
    file_system,
)

COMMAND = "pipe:"
END = bytes(1024)  # two empty blocks end a tar
CACHE = "~/.cache/vlmtune"
log = logging.getLogger("vlmtune")


def gathered(path: str, cache: str | None = None, commands: bool = False) -> Path:
    """Returns a folder with the tars that `path` names; what is there already stays.

    Args:
        path: A path or URL such as `data-{000000..000009}.tar`, or `pipe:` and a command that
            prints a tar, whose braces are expanded too.
        cache: Where the folder is made; None for `~/.cache/vlmtune`.
        commands: Whether commands may run.

    Raises:
        UserError: A tar cannot be read, or a command may not run.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for number in range(2):
        ...         _ = Path(folder, f"{number}.tar").touch()
        ...     tars = gathered(f"{folder}/{{0..1}}.tar", cache=folder)
        ...     sorted(tar.name for tar in tars.iterdir())
        ['0.tar', '1.tar']
    """
    urls = expand_urls(path)  # as webdataset expands braces
    if not commands and any(url.startswith(COMMAND) for url in urls):
        raise UserError(
            f"expected tars in data.train, got {COMMAND} and a command, which runs from the "
            f"command line alone: type --data '{COMMAND}...'"
        )
    identity = "\n".join(map(_identity, urls))
    digest = hashlib.sha256(identity.encode()).hexdigest()
    folder = Path(cache or CACHE).expanduser() / "tars" / digest[:16]
    missing = {}
    for name, url in zip(_names(urls), urls, strict=True):
        file = folder / name
        if not file.exists():
            missing[file] = url
    if not missing:
        return folder
    with locked(folder), progress(f"tars of {_shown(path)}", len(missing)) as advance:
        folder.mkdir(exist_ok=True)
        for file, url in missing.items():
            if not file.exists():  # another process may have copied it meanwhile
                _add(url, file)
            advance(1)
    if not all(file.is_symlink() for file in missing):
        tars = counted(len(missing), "tar")
        log.info("copied %s of %s into %s; delete it to copy anew", tars, _shown(path), folder)
    return folder


def _names(urls: Sequence[str]) -> list[str]:
    """The names of the tars in the folder, with a number where two have the same."""
    names = []
    for url in urls:
        name = "command.tar"
        if not url.startswith(COMMAND):
            last = urlsplit(url).path.rpartition("/")[2]
            name = unquote(last)
        names.append(name)
    count = Counter(names)
    for number, name in enumerate(names):
        if count[name] > 1:
            names[number] = f"{number:05d}-{name}"
    return names


def _identity(url: str) -> str:
    """What names a tar from every working directory; a command may read files of its own."""
    if url.startswith(COMMAND):
        return f"{url} in {Path.cwd()}"
    if is_remote(url):
        return url
    return str(Path(url).expanduser().absolute())


def _shown(url: str) -> str:
    """The name of a tar in messages: of a command only the program, as others may be secrets."""
    return url.partition(" ")[0] if url.startswith(COMMAND) else url


def _add(url: str, file: Path) -> None:
    if url.startswith(COMMAND):
        with write_atomically(file) as part:
            _print_into(url, part)
    elif is_remote(url):
        with write_atomically(file) as part:
            _download(url, part)
    else:
        tar = Path(url).expanduser().absolute()
        # A link to nothing would look like a tar until it is read.
        with reading(tar, "a tar", "name another path"):
            regular(tar).open("rb").close()
        file.unlink(missing_ok=True)  # a link to a tar that is gone
        file.symlink_to(tar)  # a copy would take the disk twice


def _print_into(url: str, part: Path) -> None:
    try:
        with gopen(url) as output, part.open("wb") as file:
            shutil.copyfileobj(output, file)
        _check_tar(part)
        got = "" if _has_end(part) else "one that is cut off"
    except OSError as error:
        # The message of webdataset holds the whole command.
        status = re.search(r"exit -?\d+", str(error))
        got = status[0] if status else reason(error)
    if got:
        raise UserError(f"expected a tar from {_shown(url)}, got {got}: run the command by hand")


def _download(url: str, part: Path) -> None:
    parts = urlsplit(url)
    parent, _, last = parts.path.rpartition("/")
    name = unquote(last)
    folder_url = urlunsplit(parts._replace(path=parent))
    address = Address(folder_url)
    patience = Patience()
    size = _size(address, name, patience.timeout)

    def check(copy: Path) -> None:
        check_content(copy, size, None)
        _check_tar(copy)

    try:
        download(address, name, part, size, check, patience)
    except DownloadError as error:
        raise UserError(
            f"expected the tar {address}/{name}, got none: it {error}; change the address, or try "
            "again when the storage answers"
        ) from None


def _size(address: Address, name: str, timeout: float) -> int | None:
    """The bytes of a file of the storage; None if the storage does not say."""
    with suppress(Exception):  # the download fails in the same way, and reports it
        system, folder = file_system(address, timeout)
        return system.info(join(folder, name)).get("size")
    return None


def _has_end(file: Path) -> bool:
    """Whether a tar is whole, which a command does not tell by a size."""
    start = max(0, file.stat().st_size - len(END))
    with file.open("rb") as tar:
        tar.seek(start)
        return tar.read() == END


def _check_tar(file: Path) -> None:
    try:
        tarfile.open(file, "r:").close()
    except tarfile.TarError:
        raise DownloadError("is not an uncompressed tar") from None
