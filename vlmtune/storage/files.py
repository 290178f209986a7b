"""Single files: written whole or not at all, and JSON that is read with a one-line error.

In: a path and its content. Out: the file, or the value in it. Never: half a file, or half of a set
of files.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from vlmtune.errors import UserError, reason

FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large", re.I)
UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}  # pydantic's words for other keys
AGAIN = "get the file again, or name another"
Count = Annotated[int, Field(strict=True, ge=0, le=2**44)]
"""The type of a number of rows or bytes in a file: neither text nor truth value; up to 16 TiB."""
PositiveCount = Annotated[Count, Field(gt=0)]
# Inside `all_or_none`: the temporary path of each path that is written.
_WRITTEN: ContextVar[dict[Path, Path] | None] = ContextVar("written", default=None)
# Of large folders: the writes until it is listed again, and its hidden files.
_LISTED: dict[Path, tuple[int, list[str]]] = {}


@contextmanager
def all_or_none() -> Iterator[None]:
    """Renames what `write_atomically` writes in the block only when the whole block succeeds.

    A report is several files. If the disk is full at any of them, the old ones stay together.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, all_or_none():
        ...     write_text(Path(folder) / "a.txt", "whole")
        ...     (Path(folder) / "a.txt").exists()
        False
    """
    if _WRITTEN.get() is not None:  # the outer block renames
        yield
        return
    written: dict[Path, Path] = {}
    token = _WRITTEN.set(written)
    try:
        yield
        for path, temporary in written.items():
            with writing(path):
                _rename(temporary, path)
    finally:
        _WRITTEN.reset(token)
        for temporary in written.values():
            remove(temporary)


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` and renames it to `path` when the block succeeds.

    The block writes a file or a folder there. If it fails, `path` stays as it was. Of a link the
    target is written, and the link stays. An error of the disk is a `UserError`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.txt"
        ...     with write_atomically(path) as temporary:
        ...         _ = temporary.write_text("whole")
        ...     [file.name for file in Path(folder).iterdir()]
        ['a.txt']
    """
    path, written = Path(path), _WRITTEN.get()
    with writing(path):
        # `replace` would put a file in place of the link.
        if path.is_symlink():
            path = path.resolve()
        path = regular(path)
        temporary = beside(path, "part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            yield temporary
            if written is None:
                _rename(temporary, path)
            else:
                written[path] = temporary
        finally:
            if written is None or path not in written:
                remove(temporary)


def beside(path: Path, kind: str) -> Path:
    """Returns the path beside `path` that this process uses meanwhile: "part" or "old".

    If it is killed, `remove_leftovers` knows that path, also with a number behind it.
    """
    return path.with_name(f".{path.name}.{_host()}{os.getpid():010d}.{kind}")


def _rename(temporary: Path, path: Path) -> None:
    old = beside(path, "old")
    try:
        if temporary.is_dir() and path.exists():
            path.replace(old)  # a folder cannot replace one that has files
        temporary.replace(path)
    except OSError:
        if old.exists():
            old.replace(path)
        raise
    finally:
        remove(old)


@contextmanager
def writing(path: Path, advice: str = "choose another folder") -> Iterator[None]:
    """The boundary between the disk and vlmtune: its errors in the block become one line."""
    try:
        yield
    except Exception as error:
        reason = _of_the_disk(error)
        if reason is None:
            raise
        if FULL.search(reason):
            with suppress(OSError):
                free = shutil.disk_usage(path.parent).free / 1e6
                reason += f" with {free:,.1f} MB free on its disk"
            advice = f"free the disk or {advice}"
        raise UserError(f"expected to write {path}, got {reason}: {advice}") from error


def remove_leftovers(path: Path) -> None:
    """Removes what killed processes of this machine left beside `path`, and restores an old `path`.

    Other machines may share the folder, so their files stay: whether their processes live is not
    known here.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_host()}(\d{{10}})\.(part|old)(\.\d+)?")
    for name in _hidden(path.parent):
        match = pattern.fullmatch(name)
        if match is None or _is_alive(int(match[1])):
            continue
        leftover = path.with_name(name)
        if match[2] == "old" and not path.exists():  # killed between two renamings
            with suppress(FileNotFoundError):  # another rank was faster
                leftover.replace(path)
        else:
            remove(leftover)


def _hidden(folder: Path) -> list[str]:
    """The names of the hidden files of a folder; of a large one as they were a few writes ago."""
    writes, names = _LISTED.pop(folder, (0, []))
    if not writes:
        with suppress(OSError):  # it may not be there
            names = os.listdir(folder)
        writes = len(names) // 100  # else 100,000 files would be listed at each of 100,000 writes
        names = [name for name in names if name.startswith(".")]
    if writes:
        _LISTED[folder] = (writes - 1, names)
    return names


def _host() -> int:
    """A number of this machine."""
    return zlib.crc32(socket.gethostname().encode())  # a name may have characters that no file has


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # else it belongs to another user
    return True


def _of_the_disk(error: BaseException) -> str | None:
    """Why a file could not be written; torch and safetensors raise errors of their own."""
    # Only errors of the system have a number: failed downloads and damaged archives have none.
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__} ({error.strerror})"
    cause: BaseException | None = error  # the reason may be several errors deep
    while cause is not None and not isinstance(cause, UserError):
        if full := FULL.search(str(cause)):
            return f"{type(cause).__name__} ({full[0]})"
        cause = cause.__cause__ or cause.__context__
    return None


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Refuses to write over a file that is read, by whatever path; an output may be None.

    Example:
        >>> check_outputs([Path("b"), None], [Path("a")])
        >>> check_outputs([Path("./a")], [Path("a")])
        Traceback (most recent call last):
        ...
        vlmtune.errors.UserError: expected a new file to write, got a, which is read: choose another
    """
    written = {path.resolve(): path for path in outputs if path is not None}
    if not written:  # looking up the million images of an index takes a minute
        return
    for path in inputs:
        output = written.get(path.resolve())
        if output is not None:
            raise UserError(
                f"expected a new file to write, got {output}, which is read: choose another"
            )


def sha256_of(path: Path) -> str:
    """Returns the checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Removes a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def reading(path: str | Path, expected: str, fix: str = AGAIN) -> Iterator[None]:
    """The boundary between a person's file and vlmtune: what fails in the block is the file's.

    The error is one line: the content that was `expected`, the file, the reason, and the `fix`.

    Example:
        >>> with reading("a", "rows", "mend it"):
        ...     {}["id"]
        Traceback (most recent call last):
        ...
        vlmtune.errors.UserError: expected rows in a, got another layout (KeyError ('id')): mend it
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        why = reason(error)
        if isinstance(error, UnicodeDecodeError) and fix == AGAIN:
            fix = "save it as UTF-8, or name another"
        if isinstance(error, LookupError | TypeError | AttributeError):
            why = f"another layout ({why})"
        why = " ".join(why.split())
        raise UserError(f"expected {expected} in {path}, got {why}: {fix}") from error


def read_json(path: str | Path, expected: str, fix: str = AGAIN, shape: Any = Any) -> Any:
    """Reads a JSON file and checks its content, as `reading` and `check_shape` do."""
    with reading(path, expected, fix):
        text = regular(path).read_text(encoding="utf-8-sig")  # editors of Windows write a mark
        content = json.loads(text)
    return check_shape(content, shape, path, expected, fix)


def regular(path: str | Path) -> Path:
    """Returns the path of a file to open; an `OSError` if it is a pipe or a device, read for ever.

    A missing file and a folder pass, as opening them is an error at once.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "a pipe or a device", str(path))
    return path


def check_shape(content: Any, shape: Any, path: str | Path, expected: str, fix: str = AGAIN) -> Any:
    """Returns the content of a file if it has the type `shape`; lists become tuples.

    A `TypeAdapter` as `shape` saves the time to make one, where many values have it. The error
    names the first wrong value.

    Example:
        >>> check_shape([["a dog", 3]], list[tuple[str, int]], "rows.json", "rows")
        [('a dog', 3)]
        >>> check_shape([["a dog", ""]], list[tuple[str, int]], "rows.json", "rows", "write 3")
        Traceback (most recent call last):
        ...
        vlmtune.errors.UserError: expected rows in rows.json, got '' at 0/1: write 3
    """
    if shape is Any:
        return content
    try:
        adapter = shape if isinstance(shape, TypeAdapter) else TypeAdapter(shape)
        return adapter.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        # Pydantic lists the type that was tried too, as in "tuple[str, int]".
        keys = [str(key) for key in first["loc"] if "[" not in str(key)]
        unknown = keys.pop() if first["type"] in UNKNOWN else None
        escaped = repr("/".join(keys))  # keys of a file may have line breaks
        where = escaped[1:-1][:60] or "the top"
        if first["type"] == "missing":
            got = "nothing"
        elif unknown is not None:
            got = f"the unknown key {unknown!r}"[:60]
        elif first["type"] == "value_error" and "ctx" in first:  # of a validator of ours
            got = str(first["ctx"]["error"])
        else:
            got = repr(first["input"])[:60]
        raise UserError(f"expected {expected} in {path}, got {got} at {where}: {fix}") from None
