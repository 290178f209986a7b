"""The four ways in which ARO shuffles a caption, and the file that keeps them.

Shuffles depend on a tagger and on chance, so they are made once, with `vlmtune shuffles`, and every
model is scored on the same ones. The file is JSON:

    {"version": 1, "annotations": sha256 of the caption file, "tagger": its class and arguments,
     "seed": 0, "shuffles": [[four texts], ...], "sha256": digest of the shuffles}

with one list of four for each caption, image by image in the order of the caption file.
Source: Yuksekgonul et al. 2023, section 2 and appendix (COCO-Order, Flickr30k-Order).
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vlmtune.benchmarks.base import read_json
from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.tagger import Tagger
from vlmtune.language.words import words

VERSION = 1
LONGEST = 30  # words of a caption that are read
CAPTIONS = 'a JSON list of {"image": path, "caption": [captions]}'
NOUNS = ("NOUN", "PROPN")
REMOVED = re.compile(r"[.!\"()*#:;~]")
Shuffle = Callable[[list[str], list[str], random.Random], list[str]]


def normalised(caption: str) -> str:
    """A caption as ARO scores it: lower case, without most punctuation, 30 words at most.

    Example:
        >>> normalised('A man, riding a "HORSE"; on the beach - (sunny).  ')
        'a man, riding a horse on the beach - sunny'
    """
    return " ".join(REMOVED.sub(" ", caption.lower()).split()[:LONGEST])


def perturb(caption: str, tagger: Tagger, seed: int) -> tuple[str, str, str, str]:
    """Shuffles a caption in four ways.

    In this order: nouns among themselves and adjectives among themselves; all other words among
    themselves; the words within each of the consecutive trigrams; the trigrams. Words are joined
    by single spaces. A shuffle may give the caption back. The same caption and seed give the same
    shuffles, whatever was shuffled before.

    Raises:
        UserError: The tagger does not give one tag a word.

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
    if len(tags) != len(split):
        raise UserError(
            f"expected {len(split)} tags for {caption[:60]!r}, got {len(tags)}: correct the tagger"
        )
    rng = random.Random(f"{seed}\n{caption}")
    first, second, third, fourth = (" ".join(shuffle(split, tags, rng)) for shuffle in SHUFFLES)
    return first, second, third, fourth


def write_shuffles(annotations: Path, output: Path, tagger: Tagger, seed: int = 0) -> None:
    """Shuffles all captions of a file and writes them, whole or not at all.

    Args:
        annotations: The caption file, such as `coco_karpathy_test.json`.
        output: The file to write.
        tagger: Tags the words.
        seed: Seed of the shuffles.

    Raises:
        UserError: The caption file cannot be read, or the output cannot be written.
    """
    shuffles = [
        list(perturb(caption, tagger, seed))
        for _, captions in read_captions(annotations)
        for caption in captions
    ]
    content = {
        "version": VERSION,
        "annotations": _digest(annotations.read_bytes()),
        "tagger": tagger.spec() if isinstance(tagger, Configured) else type(tagger).__name__,
        "seed": seed,
        "sha256": _digest(_bytes(shuffles)),
        "shuffles": shuffles,
    }
    part = output.with_name(f"{output.name}.part")
    try:
        part.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(output)
    except OSError as error:
        raise UserError(
            f"expected to write {output}, got {type(error).__name__} ({error}): correct the path"
        ) from error


def read_shuffles(path: Path, annotations: Path, count: int) -> list[list[str]]:
    """The shuffles of `count` captions.

    Args:
        path: What `write_shuffles` wrote.
        annotations: The caption file they must belong to.
        count: How many captions it has.

    Raises:
        UserError: The file cannot be read, is damaged, or belongs to other captions.
    """
    wanted = "shuffles as `vlmtune shuffles` writes them"
    content = read_json(path, wanted)
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise UserError(f"expected {wanted} in {path}, got another layout: write them again")
    if content.get("annotations") != _digest(annotations.read_bytes()):
        raise UserError(
            f"expected shuffles of {annotations} in {path}, got those of other captions: "
            "write them again"
        )
    shuffles: Any = content.get("shuffles")
    fits = isinstance(shuffles, list) and len(shuffles) == count and all(map(_four, shuffles))
    if not fits or content.get("sha256") != _digest(_bytes(shuffles)):
        raise UserError(
            f"expected four shuffles for each of {count} captions in {path}, got a damaged file: "
            "write them again"
        )
    return shuffles


def read_captions(path: Path, source: str = "") -> list[tuple[str, list[str]]]:
    """Images with their captions.

    Args:
        path: The caption file.
        source: Where it is to be had, for the error.

    Raises:
        UserError: The file cannot be read or has another layout.
    """
    rows = read_json(path, f"{CAPTIONS} from {source}" if source else CAPTIONS)
    if not isinstance(rows, list):
        raise UserError(f"expected {CAPTIONS} in {path}, got no list: download it again")
    for i, row in enumerate(rows):
        if not _captioned(row):
            raise UserError(
                f"expected {CAPTIONS} in {path}, got {str(row)[:60]} as item {i}: download it again"
            )
    return [(row["image"], row["caption"]) for row in rows]


def _captioned(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("image"), str):
        return False
    captions: Any = row.get("caption")
    texts = isinstance(captions, list) and all(isinstance(text, str) for text in captions)
    return texts and all(text.strip() for text in captions)


def _four(texts: Any) -> bool:
    return isinstance(texts, list) and len(texts) == 4 and all(isinstance(t, str) for t in texts)


def _bytes(shuffles: Sequence[Any]) -> bytes:
    return json.dumps(shuffles, ensure_ascii=False, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _among(split: list[str], places: list[int], rng: random.Random) -> list[str]:
    """The words with those at `places` shuffled."""
    order = rng.sample(places, len(places))
    shuffled = list(split)
    for place, other in zip(places, order, strict=True):
        shuffled[place] = split[other]
    return shuffled


def _places(tags: list[str], *kinds: str) -> list[int]:
    return [i for i, tag in enumerate(tags) if tag in kinds]


def _nouns_and_adjectives(split: list[str], tags: list[str], rng: random.Random) -> list[str]:
    return _among(_among(split, _places(tags, *NOUNS), rng), _places(tags, "ADJ"), rng)


def _others(split: list[str], tags: list[str], rng: random.Random) -> list[str]:
    kept = {*_places(tags, *NOUNS, "ADJ")}
    return _among(split, [i for i in range(len(split)) if i not in kept], rng)


def _within_trigrams(split: list[str], tags: list[str], rng: random.Random) -> list[str]:
    return [word for trigram in _trigrams(split) for word in rng.sample(trigram, len(trigram))]


def _trigram_order(split: list[str], tags: list[str], rng: random.Random) -> list[str]:
    trigrams = _trigrams(split)
    return [word for trigram in rng.sample(trigrams, len(trigrams)) for word in trigram]


def _trigrams(split: list[str]) -> list[list[str]]:
    return [split[i : i + 3] for i in range(0, len(split), 3)]


SHUFFLES: tuple[Shuffle, ...]
SHUFFLES = (_nouns_and_adjectives, _others, _within_trigrams, _trigram_order)
