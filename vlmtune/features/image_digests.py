"""Digests of the images of a corpus, computed once and kept in a file.

In: a digest of the corpus and its image ids. Out: the digest of each image, and rows of a store by
image id. Never: a second reading of an unchanged corpus, or digests of a file that was changed: a
training would take the features of other images.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.features.store import FeatureStore
from vlmtune.storage.files import read_json, write_text
from vlmtune.storage.folder import locked
from vlmtune.types import Features


class _Stored(TypedDict):
    """The content of the file: the digest of each image by its id, and the sha256 of them all."""

    sha256: str
    digests: dict[str, str]


def image_digests(
    root: Path, source: str, ids: Collection[str], compute: Callable[[], dict[str, str]]
) -> dict[str, str]:
    """Returns the digests of images by id, from a JSON file in `root`, a folder of stores.

    `source` is the digest of the corpus, `ids` are those of all its images. `compute` reads the
    images; it is called if the file lacks some, or is not the one that was written.
    """
    # A digest of 16 hex digits tells corpora apart; the ids are compared as well.
    path = Path(root) / f"images-{source[:16]}.json"

    def stored() -> dict[str, str] | None:
        try:
            known: _Stored = read_json(path, "digests of images", shape=_Stored)
        except UserError:  # missing or damaged
            return None
        digests = known["digests"]
        is_damaged = known["sha256"] != _sha256(digests)
        if is_damaged or digests.keys() != set(ids):
            return None
        return digests

    digests = stored()  # without a lock, so in a folder that cannot be written, too
    if digests is None:
        with locked(path):
            digests = stored()  # another process may have written it meanwhile
            if digests is None:
                digests = compute()
                content: _Stored = {"sha256": _sha256(digests), "digests": digests}
                write_text(path, json.dumps(content))
    return digests


class StoredImages:
    """A store of images by the digest of their content, read by image id."""

    def __init__(self, store: FeatureStore, digests: Mapping[str, str]) -> None:
        self.store = store
        self.digests = digests

    def __contains__(self, name: str) -> bool:
        return self.digests.get(name, "") in self.store

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of images, in the order of `ids`."""
        # An id without a digest stays, so that the error of the store names it.
        digests = [self.digests.get(name, name) for name in ids]
        return self.store.features(digests)


def _sha256(digests: dict[str, str]) -> str:
    text = json.dumps(digests)
    return hashlib.sha256(text.encode()).hexdigest()
