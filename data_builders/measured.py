"""Finds the images of test benchmarks, which builders leave out of training (`measured`).

In: the annotation files of benchmarks. Out: membership of an image, by its name. Never: an image
that is opened, so copies under other names stay unnoticed.

A name is compared by its stem, "b" of "a/b.jpg". A stem of digits is a number without zeros, as is
COCO's: "COCO_val2014_000000391895.jpg", "val2017/000000391895.jpg" and "391895" are one image. The
same number in COCO and in Visual Genome means two images, so that a name keeps its corpus where it
or its file tells it. VALSE's "v7w_2390970.jpg" is Visual Genome's 2390970.
"""

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from data_builders.shard_files import all_named
from vlmtune.data.tables import read_cells
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json
from vlmtune.storage.image_files import SUFFIXES

COCO, FLICKR30K, VISUAL_GENOME, CLEVR = "COCO", "Flickr30K", "Visual Genome", "CLEVR"
# Visual Genome's images are of YFCC100M, i.e. Flickr, and half of them also COCO's.
_OVERLAP = {frozenset((COCO, VISUAL_GENOME)), frozenset((FLICKR30K, VISUAL_GENOME))}
_COCO_NAME = re.compile(r"COCO_(?:train|val|test)20\d\d_(\d{12})")
_VISUAL7W_NAME = re.compile(r"v7w_(\d+)")
_COCO_FOLDERS = frozenset(f"{split}{year}" for split in ("train", "val", "test")
                          for year in (2014, 2015, 2017))  # fmt: skip
# COCO's ids end at 581,929. Half of Visual Genome's lie between these.
_NOT_COCO, _NOT_VISUAL_GENOME = 1_000_000, 2_500_000
_FRAME = re.compile(r"(?:^|/)0(?:\d{,10}|\d{12,})\.\w+$")  # numbers of twelve digits are COCO's
_IMAGE_FILE = re.compile(
    rf"[^\s'\",\[\]]+(?:{'|'.join(map(re.escape, sorted(SUFFIXES, reverse=True)))})", re.IGNORECASE
)
ANNOTATIONS = (".json", ".jsonl", ".csv", ".tsv")
_TRAINING = ("train", "restval")  # Karpathy's splits that no benchmark measures


class ImageName(NamedTuple):
    """An image as annotation files name it; `corpus` is None where the name does not tell it."""

    stem: str
    corpus: str | None


def image_name(text: str, corpus: str | None = None) -> ImageName:
    """Returns the normalised name of an image, from an id, a file name, a path or a URL.

    Example:
        >>> image_name("COCO_val2014_000000391895.jpg") == image_name("val2017/000000391895.jpg")
        True
        >>> image_name("https://a.org/vg_gqa_images/2390970.jpg")
        ImageName(stem='2390970', corpus='Visual Genome')
        >>> image_name("0003.jpg"), image_name("3", "COCO")
        (ImageName(stem='3', corpus=None), ImageName(stem='3', corpus='COCO'))
    """
    if "://" in text:
        text = urlsplit(text).path
    path = PurePosixPath(text)
    stem = path.stem if path.suffix.lower() in SUFFIXES else path.name
    for pattern, owner in ((_COCO_NAME, COCO), (_VISUAL7W_NAME, VISUAL_GENOME)):
        if match := pattern.fullmatch(stem):
            return ImageName(str(int(match[1])), owner)
    if stem.startswith("CLEVR_"):
        return ImageName(stem, CLEVR)
    if not (stem.isascii() and stem.isdigit()):
        return ImageName(stem, corpus)
    if corpus is None:
        # COCO's newer names are twelve digits; only a folder tells Visual Genome's.
        folders = [part.lower() for part in path.parts[:-1]]
        if len(stem) == 12 or not _COCO_FOLDERS.isdisjoint(folders):
            corpus = COCO
        elif any(part.startswith(("vg_", "visual_genome")) for part in folders):
            corpus = VISUAL_GENOME
    return ImageName(str(int(stem)), corpus)


class Measured:
    """The images that benchmark files name.

    Reads JSON, JSON lines, csv and tsv. Any string at any depth that ends like an image file
    counts, and so does an `image_id`. Rows of Karpathy's training splits do not.

    Visual Genome's `image_data.json` among the files is not a benchmark: it tells which of its
    images are which of COCO's and of Flickr30K's.

    Args:
        paths: Files, or folders of files.
        corpus: The corpus whose images will be looked up, `COCO`, `FLICKR30K`, `VISUAL_GENOME` or
            None. A number of another corpus is another image.
    """

    def __init__(self, paths: Sequence[Path], corpus: str | None = None) -> None:
        self.corpus = corpus
        self.files = frozenset[str]()
        self._corpora: dict[str, set[str | None]] = defaultdict(set)
        same: list[tuple[ImageName, ImageName]] = []
        unclear: list[tuple[str, str]] = []
        for path in _files(paths):
            content = _content(path)
            if {"coco_id", "url"} <= _first_row(content).keys():  # it is image_data.json
                same += _same_images(content)
                continue
            texts = list(dict.fromkeys(_texts(content)))
            names = _with_corpus(texts, content)
            if not names:
                raise UserError(
                    f"expected names of image files in {path}, got none: pass a benchmark's file"
                )
            self.files |= {text.lstrip("/") for text in texts}
            for name in names:
                self._corpora[name.stem].add(name.corpus)
            others = {n.corpus for n in names if n.corpus and overlap(n.corpus, corpus)}
            unclear += [(path.name, other) for other in sorted(others - {corpus})]
        # An image under one of its names is measured under its other names, too.
        for one, other in same:
            for a, b in ((one, other), (other, one)):
                if a.stem in self._corpora and self._corpora[a.stem] & {a.corpus, None}:
                    self._corpora[b.stem].add(b.corpus)
        for name, other in [] if same else unclear:
            print(
                f"warning: {name} uses {other} ids, so images that {corpus} shares are not "
                "recognised: add Visual Genome's image_data.json to `measured`",
                file=sys.stderr,
            )

    def has(self, *names: str) -> bool:
        """Tells whether an image of the corpus, by any of its names, is measured."""
        for name in (image_name(text, self.corpus) for text in names):
            corpora = self._corpora.get(name.stem, ())
            if name.corpus in corpora or None in corpora or (corpora and name.corpus is None):
                return True
        return False


def overlap(one: str, other: str | None) -> bool:
    """Tells whether an image may be in both corpora.

    Example:
        >>> overlap(COCO, VISUAL_GENOME), overlap(COCO, COCO), overlap(COCO, FLICKR30K)
        (True, True, False)
    """
    return one == other or {one, other} in _OVERLAP


def image_names(path: Path) -> list[ImageName]:
    """Returns the photographs that a benchmark's file names, with their corpus where it is known.

    Frames and rendered scenes are left out: they are numbered with zeros in front, "000089.png".
    """
    content = _content(path)
    texts = [text for text in dict.fromkeys(_texts(content)) if not _FRAME.search(text)]
    return _with_corpus(texts, content)


def measured_sources(paths: Sequence[Path]) -> Mapping[str, Path]:
    """Returns the files of `measured`, by name, for the manifest; one in a folder by its path."""
    sources = []
    for path in map(Path, paths):
        for file in _files([path]):
            key = PurePosixPath(path.name, *file.relative_to(path).parts)
            sources.append({str(key): file})
    return all_named(*sources)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ANNOTATIONS)
        if not files:
            raise UserError(
                f"expected files of a benchmark ({', '.join(ANNOTATIONS)}) in {path}, got none: "
                "download them or correct the path"
            )
        yield from files


def named_images(path: Path) -> list[str]:
    """Returns the names of images in a benchmark's file, each once."""
    return list(dict.fromkeys(_texts(_content(path))))


def _content(path: Path) -> Any:
    """The content of a file: JSON, or the rows of a table or of JSON lines."""
    if path.suffix.lower() in (".csv", ".tsv", ".jsonl"):
        return list(read_cells(path))
    return read_json(path, "a benchmark's JSON")


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """Every name of an image in the content of a file."""
    if isinstance(value, dict):
        if value.get("split") not in _TRAINING:
            for name, item in value.items():
                yield from _texts(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        if value.lower().endswith(SUFFIXES):
            yield value
        elif "." in value:  # a list in a cell of a table
            yield from _IMAGE_FILE.findall(value)
    if key == "image_id" and isinstance(value, int | str) and str(value).isdigit():
        yield str(value)


def _with_corpus(texts: Iterable[str], content: Any) -> list[ImageName]:
    """The names; bare numbers get their corpus where the whole file tells it."""
    names = list(map(image_name, texts))
    crepe = any("hard_negs" in str(key) for key in _first_row(content))
    bare = [name for name in names if name.corpus is None and name.stem.isdigit()]
    numbers = [int(name.stem) for name in bare]
    large = [number for number in numbers if number > _NOT_COCO]
    if not crepe and len(large) <= len(bare) / 4:
        return names
    # CREPE's images are Visual Genome's, however large their numbers are.
    flickr = not crepe and max(numbers) > _NOT_VISUAL_GENOME
    corpus = FLICKR30K if flickr else VISUAL_GENOME
    known = {name: ImageName(name.stem, corpus) for name in bare}
    return [known.get(name, name) for name in names]


def _first_row(content: Any) -> dict[Any, Any]:
    first = content[0] if isinstance(content, list) and content else None
    return first if isinstance(first, dict) else {}


def _same_images(content: list[dict[str, Any]]) -> list[tuple[ImageName, ImageName]]:
    """The images of Visual Genome that are COCO's or Flickr's, by both names."""
    same: list[tuple[ImageName, ImageName]] = []
    for row in content:
        number = row["image_id"] if "image_id" in row else row["id"]
        ids = {VISUAL_GENOME: number, COCO: row.get("coco_id"), FLICKR30K: row.get("flickr_id")}
        names = [image_name(str(id_), corpus) for corpus, id_ in ids.items() if id_ is not None]
        same += itertools.combinations(names, 2)
    return same
