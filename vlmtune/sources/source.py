"""Where the files of benchmarks, corpora and published weights come from: one YAML each.

In: `configs/sources/NAME.yaml`. Out: a `DataSource`, checked. Never: the network.
"""

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from vlmtune.config import ROOT
from vlmtune.storage.files import check_shape, reading

Text = Annotated[str, Field(pattern=r"\S")]
Address = Annotated[
    str, Field(pattern=r"^(https?://.+|hub(-model)?:[^@]+@[^/]+/.+|drive:.+|hand:.+)")
]
Bytes = Annotated[int, Field(ge=0)]
Checksum = Annotated[
    str, Field(pattern=r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|git:[0-9a-f]{40})$")
]


def _below(path: str) -> str:
    parts = PurePosixPath(path).parts
    leaves_folder = ".." in parts or "\\" in path
    if leaves_folder or not parts or parts[0].startswith((".", "/")):
        raise ValueError(f"{path!r}, which is not a path below the data folder")
    return path


Below = Annotated[str, AfterValidator(_below)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)  # a misspelt key is an error


class Licence(_Declared):
    """Licences of the two halves of a data set, in the words of their source."""

    annotations: Text
    images: Text


class _Addressed(_Declared):
    url: Address | Annotated[tuple[Address, ...], Field(min_length=1)]

    @property
    def urls(self) -> tuple[str, ...]:
        """Its addresses, the first one first."""
        return (self.url,) if isinstance(self.url, str) else self.url


class SourceFile(_Addressed):
    """One file, or one archive whose members are unpacked.

    Attributes:
        url: Its address. `hub:OWNER/NAME@REVISION/PATH` is a file of a data set of Hugging Face,
            `hub-model:...` of a model, `drive:ID` of Google Drive, `hand:FILE NAME` what a person
            has to get. A list names mirrors, which are tried in turn.
        path: Where the file lies, or the folder of the members, below the data root.
        of: Names of plug-ins that need it; empty if all that the source serves do.
        bytes: Its size, where it is known.
        about: Its size where only a rounded one is stated.
        checksum: What its content must be, where it is known: `sha256:`, `md5:`, or `git:` and the
            id of the blob.
        unpack: The kind of archive, of a file that is one.
        members: Pattern of the members to take, as of `fnmatch`.
        strip: Leading folders of a member's name that are left out.
    """

    path: Below
    of: tuple[Text, ...] = ()
    bytes: Bytes | None = None
    about: Bytes | None = None
    checksum: Checksum | None = None
    unpack: Literal["zip", "tar"] | None = None
    members: Text = "*"
    strip: Annotated[int, Field(ge=0)] = 0

    @property
    def size(self) -> int | None:
        """Its bytes, exact or rounded; None if nothing is stated."""
        return self.about if self.bytes is None else self.bytes


class SourceImages(_Addressed):
    """Images with an address each, of which those are fetched that the items of `of` name.

    Attributes:
        of: The benchmark whose reader names the images.
        folder: Their folder, below the data root.
        url: Address with `{name}`, the image's path in the folder, or `{file}`, its last part. A
            list names places that are tried in turn.
        count: How many the benchmark uses.
        bytes: About how many bytes they take.
        whole: Names of the sources with the archives that hold all of them.
    """

    of: Text
    folder: Below
    count: Bytes
    bytes: Bytes
    whole: tuple[Text, ...] = ()

    def addresses(self, name: PurePath) -> tuple[str, ...]:
        """The addresses of an image by its path in the folder."""
        addresses = []
        for form in self.urls:
            whole = name.as_posix()
            last = name.name
            # The library of the hub escapes a path itself.
            if not form.startswith("hub"):
                whole = quote(whole)
                last = quote(last)
            address = form.replace("{name}", whole)
            addresses.append(address.replace("{file}", last))
        return tuple(addresses)


class Conversion(_Declared):
    """A function that turns files that came into those that a reader expects.

    Attributes:
        call: Its dotted path, in `vlmtune.sources.conversions`: a YAML of the working directory
            must not name a function of its own. It takes the data root and `arguments`.
        makes: The file or folder that it writes, below the data root.
        of: Names of plug-ins that need it; empty if all that the source serves do.
        arguments: Keywords of the function.
    """

    call: Annotated[str, Field(pattern=r"^vlmtune\.sources\.conversions\.\w+\.\w+$")]
    makes: Below
    of: tuple[Text, ...] = ()
    arguments: dict[str, Any] = {}


class Serves(_Declared):
    """Names of the plug-ins that read a source."""

    benchmarks: tuple[Text, ...] = ()
    builders: tuple[Text, ...] = ()


class Published(_Declared):
    """How `--model published:NAME` loads weights.

    Attributes:
        file: The file or folder, below the data root, or below the folder of vlmtune if it comes
            with it.
        architecture: The open_clip name of a file's architecture.
        text_map_of: The base model, if the file is LABCLIP's map of its text embeddings.
    """

    file: Below
    architecture: Text | None = None
    text_map_of: Text | None = None


class DataSource(_Declared):
    """A data set or published weights, and where they come from.

    Attributes:
        title: Its name in lists.
        holds: What there is, with counts.
        serves: The plug-ins that read it.
        licence: Licences, "none stated" where its source states none.
        access: "open"; "token", an account of Hugging Face that accepted its terms; "form", files
            that a person has to ask for; "local", nothing comes from a network; "shipped", it
            comes with vlmtune.
        terms: A clause that has to be accepted by `--accept NAME`.
        page: Where a person reads about it, accepts its terms or fills in its form.
        seen: Where and when the addresses were read.
        files: Its files and archives.
        images: Images that are fetched one by one.
        convert: What is made of the files.
        steps: What a person does by hand, one step an item.
        model: Of weights, how they are loaded.
    """

    title: Text
    holds: Text
    serves: Serves = Serves()
    licence: Licence
    access: Literal["open", "token", "form", "local", "shipped"] = "open"
    terms: Text | None = None
    page: Text
    seen: Text
    files: tuple[SourceFile, ...] = ()
    images: tuple[SourceImages, ...] = ()
    convert: tuple[Conversion, ...] = ()
    steps: tuple[Text, ...] = ()
    model: Published | None = None

    @model_validator(mode="after")
    def _says_what_to_do(self) -> "DataSource":
        if not (self.files or self.steps or self.access == "shipped"):
            raise ValueError("neither files nor steps")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The plug-ins that read it."""
        return (*self.serves.benchmarks, *self.serves.builders)


@cache
def sources() -> dict[str, DataSource]:
    """All sources by name: first vlmtune's own, then the working directory's.

    A name is the path of a YAML below `configs/sources`, without its ending.

    Example:
        >>> sources()["sugar_crepe"].serves.benchmarks
        ('sugar_crepe',)
    """
    by_name = {}
    for root in (ROOT, Path()):
        folder = root / "configs/sources"
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder).with_suffix("")
            by_name[name.as_posix()] = read_source(path)
    return by_name


def source_of(path: Path) -> str | None:
    """The source of a file below `data`; None if none brings it.

    Example:
        >>> source_of(Path("data/coco/dataset_coco.json")), source_of(Path("data/mine.csv"))
        ('coco', None)
    """
    if path.parts[:1] != ("data",):  # a path of the user, which no source brings
        return None
    inner = PurePosixPath(*path.parts[1:])
    for name, source in sources().items():
        if any(_brings(file, inner) for file in source.files):
            return name
    return None


def _brings(file: SourceFile, path: PurePosixPath) -> bool:
    """Whether a file comes to a path below the data root, or is unpacked to it."""
    if file.unpack is None:
        return str(path) == file.path
    if not path.is_relative_to(file.path):
        return False
    # Leading folders that are left out may have any name.
    inner = str(path.relative_to(file.path))
    member = "*/" * file.strip + inner
    return fnmatchcase(member, file.members)


def read_source(path: Path) -> DataSource:
    """Reads the YAML of a source; a `UserError` names its first mistake."""
    with reading(path, "YAML"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return check_shape(content, DataSource, path, "a source", "see docs/data.md")
