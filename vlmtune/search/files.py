"""The list of an index: which images it has, and which model encoded them.

In: a folder. Out: its list, checked. Never: a model or an image.

An index is a folder with

    index.json     the model, the parts, and the digest of each image by its path
    part-00000/    some encoded images (see `parts`), and so on
    recall-00000/  short vectors of all images (see `shortlist`), if the adapter has some

`index.json` is replaced at the end of a run. A part that it does not list is of a run that was
killed; the next run takes its images over. The next run also removes a shortlist that it does not
list, such as the one that it listed before.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.storage.files import read_json
from vlmtune.storage.folder import DamagedError

LIST = "index.json"
VERSION: Literal[3] = 3
PART, SHORTLIST = re.compile(r"part-\d{5,9}"), re.compile(r"recall-\d{5,9}")
FOLDER = f"({PART.pattern}|{SHORTLIST.pattern})"
WRITTEN = re.compile(rf"{FOLDER}|\.({FOLDER}|index\.json)\.\d+\.(part|old)")
"""What `vlmtune index` writes beside the list; files with a dot are from a killed run."""
EXPECTED, AGAIN = "an index of vlmtune", "build one in a new folder with `vlmtune index`"


class Source(TypedDict):
    """Where the model comes from, and the digest of its weights (`IndexEncoder.identity`)."""

    name: str
    pretrained: str | None
    architecture: str | None
    identity: str


class Listed(TypedDict):
    """The content of `index.json`; `images` has the digest of each image by its absolute path."""

    version: Literal[3]
    model: Source
    parts: list[Annotated[str, Field(pattern=f"^{PART.pattern}$")]]
    shortlist: Annotated[str, Field(pattern=f"^{SHORTLIST.pattern}$")] | None
    images: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


def read_list(folder: Path) -> Listed:
    """Reads and checks the list of an index."""
    return read_json(Path(folder) / LIST, EXPECTED, AGAIN, Listed)


def part_key(identity: str) -> dict[str, str | int]:
    """Returns the key of the parts of a model."""
    return {"model": identity, "version": VERSION}


def shortlist_key(identity: str, parts: Sequence[str]) -> dict[str, Any]:
    """Returns the key of the shortlist of these parts."""
    return {**part_key(identity), "parts": list(parts)}


@contextmanager
def undamaged(folder: Path, name: str) -> Iterator[None]:
    """Says which folder of an index is damaged, if opening it in the block finds that."""
    try:
        yield
    except DamagedError as error:
        raise UserError(
            f"expected {EXPECTED} in {folder}, {name} is damaged ({error}): {AGAIN}"
        ) from error
