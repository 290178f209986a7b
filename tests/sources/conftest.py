"""A data folder, a mirror on loopback, and a source whose benchmark reads what comes."""

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from PIL import Image

from tests.faulty_server import FaultyServer, serving
from vlmtune.config import DATA, ROOT
from vlmtune.sources import source
from vlmtune.sources.addresses import MIRROR, request_of
from vlmtune.sources.source import sources
from vlmtune.storage.remote.download import Patience

SOON = Patience(tries=3, timeout=60.0, wait=0.01, longest=0.05)
read = source.read_source
of_vlmtune = cache(read)


def read_once(path: Path) -> source.DataSource:
    """Reads the YAML of a source, one of vlmtune's own once for all tests."""
    return of_vlmtune(path) if path.is_relative_to(ROOT) else read(path)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs a test in an empty folder, with the sources that it declares there."""
    monkeypatch.chdir(tmp_path)
    # Removed again after the test, also where a command sets it.
    monkeypatch.setenv(DATA, "data")
    monkeypatch.setattr(source, "read_source", read_once)
    sources.cache_clear()
    yield
    sources.cache_clear()


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A mirror on loopback, which is asked in place of all hosts."""
    with serving(tmp_path / "mirror") as made:
        made.ranges = True
        monkeypatch.setenv(MIRROR, made.url)
        yield made


def publish(server: FaultyServer, address: str, content: bytes | Path) -> str:
    """Puts a file where the mirror has it; returns its name there."""
    name = unquote(urlsplit(request_of(address).url).path).lstrip("/")
    file = server.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return name


def content(folder: Path = Path("data")) -> dict[str, bytes]:
    """The files of a data folder by name, without what vlmtune notes there."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".downloads" not in path.parts and path.name != "licences.json":
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def declare(name: str, **facts: Any) -> None:
    """Writes the YAML of a source into the working directory."""
    usual = {
        "title": name,
        "holds": "two items",
        "licence": {"annotations": "CC0 1.0", "images": "CC0 1.0"},
        "page": f"https://example.org/{name}",
        "seen": "a test",
    }
    path = Path("configs/sources", f"{name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(usual | facts), encoding="utf-8")
    sources.cache_clear()


def zipped(members: dict[str, str | bytes]) -> bytes:
    """A zip with members by name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


def tarred(members: dict[str, str | bytes]) -> bytes:
    """A compressed tar with members by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            content = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def picture(path: Path, colour: int = 90) -> Path:
    """Writes a small image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (colour, 30, 30)).save(path)
    return path


def rows(count: int = 3) -> bytes:
    """The file of a subset of SugarCrepe with so many items, each of an image of its own."""
    content = {}
    for number in range(count):
        content[str(number)] = {
            "filename": f"{number:012d}.jpg",
            "caption": "a red cube left of the blue sphere",
            "negative_caption": "a blue cube left of the red sphere",
        }
    return json.dumps(content).encode()


def redeclare(name: str, **facts: Any) -> None:
    """Declares a source of vlmtune again, without what only the published content has."""
    path = Path("configs/sources", f"{name}.yaml")
    declared = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    for file in declared.get("files", ()):
        for fact in ("bytes", "about", "checksum"):
            file.pop(fact, None)
    for images in declared.get("images", ()):
        images["bytes"] = 0
    declare(name, **(declared | facts))


HOST = "https://host.example/toy"


def declare_toy(server: FaultyServer, count: int = 3, name: str = "toy", **facts: Any) -> None:
    """Declares and publishes a benchmark of one file and `count` images with addresses."""
    publish(server, f"{HOST}/add_att.json", rows(count))
    for number in range(count):
        content = picture(server.folder / "made.jpg", 60 * number)
        publish(server, f"{HOST}/images/{number:012d}.jpg", content)
    options = {"path": "data/toy", "images": "data/toy/images", "subsets": ["add_att"]}
    spec = {
        "class_path": "vlmtune.benchmarks.sugar_crepe.SugarCrepe",
        "init_args": options | {"name": "toy"},
    }
    reader = Path(f"configs/plugins/benchmarks/{name}.yaml")
    reader.parent.mkdir(parents=True, exist_ok=True)
    reader.write_text(yaml.safe_dump(spec), encoding="utf-8")
    usual: dict[str, Any] = {
        "serves": {"benchmarks": [name]},
        "files": [{"url": f"{HOST}/add_att.json", "path": "toy/add_att.json"}],
        "images": [single_images(of=name, count=count)],
    }
    declare(name, **(usual | facts))


def single_images(**facts: Any) -> dict[str, Any]:
    """The images of the toy benchmark, as its YAML has them."""
    usual = {"of": "toy", "folder": "toy/images", "count": 3, "bytes": 900}
    return {**usual, "url": f"{HOST}/images/{{name}}", **facts}
