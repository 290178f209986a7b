"""Cola's single-object files: images, queries, and which image is true of, or near, which query.

In: a benchmark file and the folder of images. Out: images, queries and their truth. Never: an image
that is opened.

JSON, either `{"labels": [...], "data": [...]}` (as documented) or `[labels, data]` (as the
released script indexes it). A label is a string or `[[attribute, ...], object]`. An entry of
`data` is `[image, annotation, label, hard]` with 0/1 lists `label` and `hard` over the labels;
`annotation` lists the image's objects in the form of the labels; it may be null or absent (PACO).

An image is a file name (GQA: `<id>.jpg`), a path (CLEVR: `.../<split>/<file>`, PACO:
`val2017/<file>`) or a URL. It is looked up in the folder under the longest end of that path which
is a file there, which distinguishes files of one name in two folders.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from vlmtune.benchmarks.files import Text, file_error
from vlmtune.storage.files import check_shape, read_json
from vlmtune.types import ImageRef

LAYOUT = 'a JSON object {"labels": [...], "data": [[image, annotation, label, hard], ...]}'
SEEN = 'a JSON object {"seen": [label, ...], "unseen": [label, ...]}'
Label = Text | tuple[list[str], Text]
Flags = list[Literal[0, 1]]


class Content(TypedDict):
    """A benchmark file; every entry of `data` with its annotation."""

    labels: Annotated[list[Label], Field(min_length=1)]
    data: Annotated[list[tuple[str, list[Label] | None, Flags, Flags]], Field(min_length=1)]


class Subsets(TypedDict):
    """The labels that training has seen, and all other labels."""

    seen: list[str]
    unseen: list[str]


@dataclass(frozen=True)
class Queries:
    """N images, C queries, and how they belong together."""

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]  # the queries as the file writes them, words joined by blanks
    labels: Bool[Tensor, "N C"]  # the query is true of the image
    hard: Bool[Tensor, "N C"]  # the image has one of the query's words on some object
    # The image has all of the query's words, on any objects; None where the objects of some image
    # are not annotated
    every: Bool[Tensor, "N C"] | None
    # How many attributes a query states; -1 where neither the label nor an annotation says which of
    # its words are the object
    attributes: Int[Tensor, "C"]

    @property
    def ranked(self) -> Bool[Tensor, "N C"]:
        """The pairs that a metric other than `standard_map` ranks."""
        ranked = self.hard | self.labels
        return ranked if self.every is None else ranked | self.every

    def of(self, rows: Sequence[int]) -> "Queries":
        """Returns the queries with only these images."""
        kept = list(rows)
        images = [self.images[row] for row in kept]
        every = None if self.every is None else self.every[kept]
        return replace(
            self,
            images=tuple(images),
            labels=self.labels[kept],
            hard=self.hard[kept],
            every=every,
        )


def read_queries(path: Path, folder: Path) -> Queries:
    """Reads a benchmark file; `folder` has the images, whose existence is checked later."""
    raw = check_shape(_unified(read_json(path, LAYOUT)), Content, path, LAYOUT)
    labels = raw["labels"]
    names, annotations, flags, hard = zip(*raw["data"], strict=True)
    texts = [" ".join(_atoms(label)) for label in labels]
    images = [ImageRef(_locate(folder, name)) for name in names]
    # A query twice would have two columns, and an image twice two rows, of one score each.
    counts = {len(row) for row in chain(flags, hard)}
    distinct = {*texts, *images}
    is_repeated = len(distinct) < len(texts) + len(images)
    if is_repeated or counts != {len(texts)}:
        came = f"rows of {sorted(counts)} flags for {len(texts)} labels"
        if is_repeated:
            came = "the same label or image twice"
        raise file_error(path, LAYOUT, came)
    every = None if None in annotations else _every_word(labels, annotations)
    return Queries(
        images=tuple(images),
        texts=tuple(texts),
        labels=torch.tensor(flags, dtype=torch.bool),
        hard=torch.tensor(hard, dtype=torch.bool),
        every=every,
        attributes=_attributes(labels, annotations),
    )


def _unified(raw: Any) -> Any:
    """The content of a file in the documented layout, whichever release wrote it."""
    # The released script reads `[labels, data]`.
    if isinstance(raw, list) and len(raw) == 2:
        labels, data = raw
        raw = {"labels": labels, "data": data}
    if isinstance(raw, dict) and isinstance(raw.get("data"), list):
        for row in raw["data"]:
            if isinstance(row, list) and len(row) == 3:
                row.insert(1, None)  # PACO's rows have no annotation
    return raw


def read_subsets(path: Path, texts: tuple[str, ...]) -> dict[str, Bool[Tensor, "C"]]:
    """Reads which of the queries `texts` training has seen, `{"seen": [...], "unseen": [...]}`."""
    subsets = {}
    content = read_json(path, SEEN, shape=Subsets)
    for name, labels in content.items():
        # A misspelt label would silently leave its query out of both means.
        unknown = sorted(set(labels) - set(texts))
        if unknown:
            raise file_error(path, SEEN, f"{unknown[0]!r}, which is not a label")
        is_of_subset = [text in labels for text in texts]
        subsets[name] = torch.tensor(is_of_subset)
    return subsets


def spelled(texts: Sequence[str]) -> tuple[str, ...]:
    """Queries in plain words: without PACO's underscores and qualifiers in parentheses.

    Queries that would then be alike keep their qualifiers.

    Example:
        >>> spelled(["light_blue car_(automobile)", "other(color) cup", "other(material) cup"])
        ('light blue car', 'other(color) cup', 'other(material) cup')
    """
    without_qualifiers = [re.sub(r"\([^()]*\)", " ", text) for text in texts]
    shortened = list(map(_plain, without_qualifiers))
    times = Counter(shortened)
    queries = []
    for text, short in zip(texts, shortened, strict=True):
        is_distinct = short and times[short] == 1
        query = short if is_distinct else _plain(text)
        queries.append(query)
    return tuple(queries)


def _plain(text: str) -> str:
    return " ".join(text.replace("_", " ").split())


def _locate(folder: Path, image: str) -> Path:
    """The file under the longest end of the path that exists, else under its bare name."""
    full = urlsplit(image).path if "://" in image else image
    parts = [part for part in PurePosixPath(full).parts if part != "/"]
    # The longest end first: files of one name lie in two folders of CLEVR.
    for start in range(len(parts) - 1):
        end = parts[start:]
        # A path of a file must not lead out of the folder.
        if ".." in end:
            continue
        path = folder.joinpath(*end)
        if path.is_file():
            return path
    return folder / (parts[-1] if parts else image)


def _atoms(label: Any) -> tuple[str, ...]:
    """The attributes and the object of `[[attribute, ...], object]`; the words of a string."""
    if isinstance(label, str):
        return tuple(label.split())
    attributes, noun = label
    # A file may pad attributes with blank ones, which state nothing.
    return (*filter(None, attributes), noun)


def _every_word(labels: Sequence[Any], annotations: Sequence[Any]) -> Bool[Tensor, "N C"]:
    """Which image has all words of which query."""
    # "dining table" is one atom, unless some label is a plain string, which has no such borders.
    mentioned = chain(labels, *annotations)
    loose = any(isinstance(label, str) for label in mentioned)

    def words(objects: Sequence[Any]) -> set[str]:
        atoms: set[str] = set()
        for described in objects:
            atoms.update(_atoms(described))
        if loose:
            return set(" ".join(atoms).split())
        return atoms

    queries = [words([label]) for label in labels]
    rows = []
    for objects in annotations:
        present = words(objects)
        rows.append([query <= present for query in queries])
    return torch.tensor(rows)


def _attributes(labels: Sequence[Any], annotations: Sequence[Any]) -> Int[Tensor, "C"]:
    """How many attributes each query states; of a string, the words before its known object."""
    nouns = set()
    for label in chain(labels, *filter(None, annotations)):
        if not isinstance(label, str):
            _, noun = label
            nouns.add(noun)
    counts = []
    for label in labels:
        if isinstance(label, str):
            counts.append(_noun_start(label.split(), nouns))
        else:
            counts.append(len(_atoms(label)) - 1)
    return torch.tensor(counts)


def _noun_start(words: Sequence[str], nouns: Collection[str]) -> int:
    """Where the object of a query begins among its words; -1 if it ends in no known object."""
    # The longest object first: "dining table" before "table".
    for start in range(len(words)):
        if " ".join(words[start:]) in nouns:
            return start
    return -1
