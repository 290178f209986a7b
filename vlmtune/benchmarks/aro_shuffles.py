"""The four ways in which ARO shuffles a caption, and the file that keeps the shuffles.

In: captions and a tagger. Out: the file of shuffles, and the shuffles in it. Never: a shuffle that
depends on the captions before it.

Shuffles depend on a tagger and on chance, so `vlmtune shuffles` writes them once, and every model
is scored on the same ones: four for each caption, image by image in the order of the caption file,
with the digests of the caption file and of the shuffles.
Source: Yuksekgonul et al. 2023, section 2 and appendix (COCO-Order, Flickr30k-Order).
"""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from vlmtune.benchmarks.files import Text, get_file
from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.tagger import LexiconTagger, SpacyTagger, Tagger
from vlmtune.language.words import words
from vlmtune.storage.files import read_json, write_text

VERSION = 1
LONGEST = 30  # words of a caption that count
LAYOUT = 'a JSON list of {"image": path, "caption": [captions]}'
NOUNS = ("NOUN", "PROPN")
REMOVED = re.compile(r"[.!\"()*#:;~]")


class Captioned(TypedDict):
    """An image and its captions."""

    image: Text
    caption: list[Text]


class Shuffles(TypedDict):
    """The file of shuffles; it also says how they were made."""

    version: Literal[1]
    annotations: str
    sha256: str
    shuffles: list[list[str]]


def normalised(caption: str) -> str:
    """A caption as ARO scores it: lower case, without most punctuation, 30 words at most.

    Example:
        >>> normalised('A man, riding a "HORSE"; on the beach - (sunny).  ')
        'a man, riding a horse on the beach - sunny'
    """
    kept = REMOVED.sub(" ", caption.lower())
    return " ".join(kept.split()[:LONGEST])


def perturb(caption: str, tagger: Tagger, seed: int) -> tuple[str, str, str, str]:
    """Shuffles a caption in four ways; a shuffle may give the caption back.

    In this order: nouns among themselves and adjectives among themselves; all other words among
    themselves; the words within each of the consecutive trigrams; the trigrams. The same caption
    and seed give the same shuffles, whatever was shuffled before.

    Example:
        >>> class Last:
        ...     def tag(self, words):
        ...         return ["NOUN" if word == words[-1] else "DET" for word in words]
        >>> perturb("a b c", Last(), seed=0)[0]
        'a b c'
        >>> sorted(perturb("a b c", Last(), seed=0)[1])
        [' ', ' ', 'a', 'b', 'c']
    """
    split = words(caption)
    tags = tagger.tag(split)
    rng = random.Random(f"{seed}\n{caption}")  # not of the captions before
    nouns = [i for i, tag in enumerate(tags) if tag in NOUNS]
    adjectives = [i for i, tag in enumerate(tags) if tag == "ADJ"]
    others = [i for i, tag in enumerate(tags) if tag not in (*NOUNS, "ADJ")]
    trigrams = [split[start : start + 3] for start in range(0, len(split), 3)]

    # The order in which these draw from `rng` defines the file: each is a list, drawn at once.
    first = _shuffled(split, nouns, rng)
    first = _shuffled(first, adjectives, rng)
    second = _shuffled(split, others, rng)
    third = []
    for trigram in trigrams:
        third += rng.sample(trigram, len(trigram))
    fourth = list(chain.from_iterable(rng.sample(trigrams, len(trigrams))))
    return " ".join(first), " ".join(second), " ".join(third), " ".join(fourth)


def write_shuffles(
    annotations: Path, output: Path, tagger: Tagger | str | None = None, seed: int = 0
) -> None:
    """Shuffles all captions of the file `annotations` and writes the shuffles atomically.

    A tagger's name is one of spaCy's models; None is the tagger of vlmtune.
    """
    if tagger is None:
        tagger = LexiconTagger()
    elif isinstance(tagger, str):
        tagger = SpacyTagger(tagger)
    shuffles = []
    for _, captions in read_captions(annotations):
        for caption in captions:
            shuffles.append(list(perturb(caption, tagger, seed)))
    content = {
        "version": VERSION,
        "annotations": _digest(annotations.read_bytes()),
        "tagger": tagger.spec() if isinstance(tagger, Configured) else type(tagger).__name__,
        "seed": seed,
        "sha256": _digest(_bytes(shuffles)),
        "shuffles": shuffles,
    }
    write_text(output, json.dumps(content, ensure_ascii=False) + "\n")


def read_shuffles(path: str | Path, annotations: str | Path, count: int) -> list[list[str]]:
    """Reads the shuffles of the `count` captions of the caption file `annotations`."""
    layout = "shuffles as `vlmtune shuffles` writes them"
    content: Shuffles = read_json(path, layout, "write them again", Shuffles)
    shuffles = content["shuffles"]
    captions_digest = _digest(Path(annotations).read_bytes())
    of_captions = content["annotations"] == captions_digest
    is_whole = len(shuffles) == count and content["sha256"] == _digest(_bytes(shuffles))
    if not of_captions or not is_whole:
        came = "a damaged file" if of_captions else "the shuffles of other captions"
        raise UserError(
            f"expected four shuffles for each of the {count} captions of {annotations} in {path}, "
            f"got {came}: write them again"
        )
    return shuffles


def read_captions(path: str | Path, source: str = "its authors") -> list[tuple[str, list[str]]]:
    """Reads images with their captions; `source` says where to get the file."""
    shape = Annotated[list[Captioned], Field(min_length=1)]
    rows = read_json(path, LAYOUT, get_file(source), shape)
    return [(row["image"], row["caption"]) for row in rows]


def _bytes(shuffles: Sequence[Any]) -> bytes:
    # The digest is of these bytes, so the separators are part of the file's layout.
    text = json.dumps(shuffles, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _shuffled(split: list[str], positions: list[int], rng: random.Random) -> list[str]:
    """The words with those at `positions` shuffled."""
    order = rng.sample(positions, len(positions))
    shuffled = list(split)
    for position, other in zip(positions, order, strict=True):
        shuffled[position] = split[other]
    return shuffled
