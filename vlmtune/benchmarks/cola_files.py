"""Cola's single-object files: images, queries, and which image is true of, or near, which query.

JSON, either `{"labels": [...], "data": [...]}` (as documented) or `[labels, data]` (as the
released script indexes it). A label is a string or `[[attribute, ...], object]`. An entry of
`data` is `[image, annotation, label, hard]` with 0/1 lists `label` and `hard` over the labels;
`annotation` lists the image's objects in the form of the labels; it may be null or absent (PACO).

An image is a file name (GQA: `<id>.jpg`), a path (CLEVR: `.../<split>/<file>`, PACO:
`val2017/<file>`) or a URL. It is looked up in the folder under the longest end of that path which
is a file there, so files of one name in two folders are told apart.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlmtune.benchmarks.files import read_json
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

LAYOUT = 'a JSON object {"labels": [...], "data": [[image, annotation, label, hard], ...]}'


@dataclass(frozen=True)
class Queries:
    """N images, C queries, and how they belong together.

    Attributes:
        images: The images.
        texts: The queries as the file writes them, words joined by blanks.
        labels: The query is true of the image.
        hard: The image has one of the query's words on some object.
        every: The image has all of the query's words, on any objects; None where the objects of
            some image are not annotated.
        attributes: How many attributes a query states; -1 where neither the label nor an annotation
            says which of its words are the object.
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    labels: Bool[Tensor, "N C"]
    hard: Bool[Tensor, "N C"]
    every: Bool[Tensor, "N C"] | None
    attributes: Int[Tensor, "C"]

    @property
    def ranked(self) -> Bool[Tensor, "N C"]:
        """The pairs that a metric other than `standard_map` ranks."""
        ranked = self.hard | self.labels
        return ranked if self.every is None else ranked | self.every

    def of(self, rows: Sequence[int]) -> "Queries":
        """Returns those of the chosen images."""
        every = None if self.every is None else self.every[list(rows)]
        return replace(
            self,
            images=tuple(self.images[i] for i in rows),
            labels=self.labels[list(rows)],
            hard=self.hard[list(rows)],
            every=every,
        )


def read_queries(path: Path, folder: Path) -> Queries:
    """Reads a file.

    Args:
        path: The file.
        folder: The folder with the images; whether they exist is checked later.
    """
    labels, data = _parts(read_json(path, LAYOUT), path)
    entries = [_entry(i, entry, len(labels), path) for i, entry in enumerate(data)]
    texts = tuple(" ".join(filter(None, _atoms(label, path))) for label in labels)
    if len(set(texts)) != len(texts):
        raise _wrong(path, "the same label twice")
    images = tuple(ImageRef(_located(folder, entry[0])) for entry in entries)
    if len(set(images)) != len(images):
        raise _wrong(path, "the same image twice")
    annotations = [entry[1] for entry in entries]
    annotated = all(isinstance(objects, list) for objects in annotations)
    return Queries(
        images=images,
        texts=texts,
        labels=torch.tensor([entry[2] for entry in entries], dtype=torch.bool),
        hard=torch.tensor([entry[3] for entry in entries], dtype=torch.bool),
        every=_every_word(labels, annotations, path) if annotated else None,
        attributes=_attributes(labels, annotations, path),
    )


def read_subsets(path: Path, texts: tuple[str, ...]) -> dict[str, Bool[Tensor, "C"]]:
    """Reads which queries training has seen: `{"seen": [label, ...], "unseen": [label, ...]}`.

    Args:
        path: The JSON file.
        texts: All queries.
    """
    layout = 'a JSON object {"seen": [label, ...], "unseen": [label, ...]}'
    raw = read_json(path, layout)
    fits = isinstance(raw, dict) and raw.keys() == {"seen", "unseen"}
    if not fits or any(not isinstance(part, list) for part in raw.values()):
        raise UserError(f"expected {layout} in {path}, got another layout: correct the file")
    named = [str(label) for part in raw.values() for label in part]
    unknown = sorted(set(named) - set(texts))
    if unknown or len(set(named)) != len(named):
        reason = f"{unknown[0]!r}, which is no label" if unknown else "a label twice"
        raise UserError(f"expected labels of the benchmark in {path}, got {reason}: correct it")
    return {part: torch.tensor([text in labels for text in texts]) for part, labels in raw.items()}


def spelled(texts: Sequence[str]) -> tuple[str, ...]:
    """Queries in plain words: PACO's names have underscores and qualifiers in parentheses.

    An underscore becomes a blank and a qualifier is left out, unless two queries would then be
    alike; these keep it. Other queries stay as they are.

    Example:
        >>> spelled(["light_blue car_(automobile)", "other(color) cup", "other(material) cup"])
        ('light blue car', 'other(color) cup', 'other(material) cup')
    """
    plain = [_plain(re.sub(r"\([^()]*\)", " ", text)) for text in texts]
    times = Counter(plain)
    return tuple(
        short if short and times[short] == 1 else _plain(text)
        for short, text in zip(plain, texts, strict=True)
    )


def _plain(text: str) -> str:
    return " ".join(text.replace("_", " ").split())


def _parts(raw: Any, path: Path) -> tuple[list[Any], list[Any]]:
    """Labels and data of either layout."""
    if isinstance(raw, dict) and {"labels", "data"} <= raw.keys():
        labels, data = raw["labels"], raw["data"]
    elif isinstance(raw, list) and len(raw) == 2:
        labels, data = raw
    else:
        raise _wrong(path, "neither that nor [labels, data]")
    if not (isinstance(labels, list) and isinstance(data, list) and labels and data):
        raise _wrong(path, "labels or data that are not a list, or an empty one")
    return labels, data


def _entry(i: int, entry: Any, classes: int, path: Path) -> tuple[str, Any, list[int], list[int]]:
    """One entry as (image, annotation or None, label, hard)."""
    if not isinstance(entry, list) or len(entry) not in (3, 4) or type(entry[0]) is not str:
        raise _wrong(path, f"entry {i} that is not a list of 3 or 4 elements, an image name first")
    image, *annotation, label, hard = entry
    for flags in (label, hard):
        fits = isinstance(flags, list) and len(flags) == classes
        if not fits or any(flag not in (0, 1) for flag in flags):
            raise _wrong(path, f"entry {i} whose label or hard is not a list of {classes} 0s or 1s")
    return image, annotation[0] if annotation else None, label, hard


def _located(folder: Path, image: str) -> Path:
    """The file under the longest end of the path that is there, else under its bare name."""
    full = urlsplit(image).path if "://" in image else image
    parts = [part for part in PurePosixPath(full).parts if part != "/"]
    for start in range(len(parts) - 1):
        end = parts[start:]
        if ".." not in end and (path := folder.joinpath(*end)).is_file():
            return path
    return folder / (parts[-1] if parts else image)


def _atoms(compound: Any, path: Path) -> tuple[str, ...]:
    """The attributes and the object of `[[attribute, ...], object]`; the words of a string."""
    if isinstance(compound, str) and compound.strip():
        return tuple(compound.split())
    if isinstance(compound, list) and len(compound) == 2 and isinstance(compound[0], list):
        atoms = (*compound[0], compound[1])
        if all(isinstance(atom, str) for atom in atoms) and compound[1].strip():
            return atoms
    raise _wrong(path, f"{str(compound)[:60]!r} instead of a label or an object")


def _every_word(
    labels: Sequence[Any], annotations: Sequence[Any], path: Path
) -> Bool[Tensor, "N C"]:
    """Which image has all words of which query."""
    # "dining table" is one atom, unless some compound is a plain string without such borders.
    compounds = [*labels, *(x for objects in annotations for x in objects)]
    loose = any(isinstance(compound, str) for compound in compounds)

    def words(compounds: Sequence[Any]) -> Iterator[str]:
        for compound in compounds:
            for atom in _atoms(compound, path):
                yield from atom.split() if loose else (atom,)

    queries = [set(words([label])) for label in labels]
    present = [set(words(objects)) for objects in annotations]
    return torch.tensor([[query <= image for query in queries] for image in present])


def _attributes(labels: Sequence[Any], annotations: Sequence[Any], path: Path) -> Int[Tensor, "C"]:
    """How many attributes each query states; of a string, the words before its known object."""
    listed = [x for objects in annotations if isinstance(objects, list) for x in objects]
    nouns = {_atoms(x, path)[-1] for x in (*labels, *listed) if isinstance(x, list)}
    counts = []
    for label in labels:
        if isinstance(label, list):
            counts.append(len([attribute for attribute in label[0] if attribute]))
            continue
        words = label.split()
        ends = range(len(words))  # the longest object first: "dining table" before "table"
        counts.append(next((i for i in ends if " ".join(words[i:]) in nouns), -1))
    return torch.tensor(counts)


def _wrong(path: Path, came: str) -> UserError:
    return UserError(f"expected {LAYOUT} in {path}, got {came}: download the file again")
