"""What stored features depend on, which names their store.

In: a backbone's fingerprint, a representation, and the ids of rows. Out: a key.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlmtune.data.rgb import DECODING
from vlmtune.storage import folder as folders
from vlmtune.types import FeatureSpec

Modality = Literal["image", "text"]
StoreDType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class StoreKey:
    """What the stored numbers depend on; another key is another store.

    Attributes:
        backbone: `Backbone.fingerprint`.
        modality: "image" or "text".
        spec: The representation: frozen, and not of words, whose token ids a store would lose.
        source: `source_digest` of the row ids.
        dtype: The type of the stored numbers.

    Example:
        >>> StoreKey("f00d", "text", FeatureSpec("tokens", -2), "cafe", "float16").folder
        'text-tokens-2-float16-cea7e5556b173c38'
    """

    backbone: str
    modality: Modality
    spec: FeatureSpec
    source: str
    dtype: StoreDType = "float32"

    def __post_init__(self) -> None:
        assert storable(self.spec), "a live representation is encoded in each step"

    def to_dict(self) -> dict[str, Any]:
        """Returns the key as JSON values, without the layer if nothing depends on it."""
        key = asdict(self)
        if self.spec.kind == "pooled":
            del key["spec"]["layer"]
        if self.modality == "image":
            # How images are read may change with a version of vlmtune.
            key["decoding"] = DECODING
        return {**key, "version": folders.VERSION}

    @property
    def folder(self) -> str:
        """Name of the store's folder."""
        layer = "" if self.spec.kind == "pooled" else str(self.spec.layer)
        stem = f"{self.modality}-{self.spec.kind}{layer}-{self.dtype}"
        digest = folders.digest(self.to_dict())
        return f"{stem}-{digest[:16]}"


def storable(spec: FeatureSpec) -> bool:
    """Whether features may be stored: they are frozen, and no table of words."""
    return spec.frozen and spec.kind != "words"


def source_digest(parts: Iterable[str]) -> str:
    """Returns a digest of a set of strings, whatever their order.

    Example:
        >>> source_digest(["a", "b"]) == source_digest(["b", "a", "a"]) != source_digest(["ab"])
        True
    """
    state = hashlib.sha256()
    for part in sorted(set(parts)):
        data = part.encode("utf-8", "surrogatepass")
        # With its length before each part, "a" and "bc" differ from "ab" and "c".
        length = len(data).to_bytes(8, "little")
        state.update(length + data)
    return state.hexdigest()
