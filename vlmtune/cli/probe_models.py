"""The embeddings that `vlmtune probe` compares: models, their frozen originals, and layers.

In: the options of the command. Out: an `Embedding` for each model and layer.
Never: an embedding of an image.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from vlmtune.cli.evaluate import default_name
from vlmtune.cli.plugins import model_of
from vlmtune.errors import UserError
from vlmtune.model.model import Model
from vlmtune.probing.embeddings import LayerEmbedder

POOLED = "pooled"


@dataclass(frozen=True)
class Embedding:
    """A model, as it was `given`, at a layer; `before` names its frozen original, if any."""

    name: str
    given: str
    embedder: LayerEmbedder
    before: str = ""

    @property
    def folder(self) -> str:
        """The name as that of a folder."""
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-")


def embeddings_of(options: argparse.Namespace) -> list[Embedding]:
    """Returns the embeddings in the order of the tables, each original before its model."""
    embeddings = []
    for given in options.model:
        for name, model, before in _models(given, options):
            for layer in dict.fromkeys(options.layer):
                embedder = LayerEmbedder(model, layer, options.text)
                original = before and _named(before, layer)
                embeddings.append(Embedding(_named(name, layer), given, embedder, original))
    # Two embeddings in one folder would overwrite each other's tables.
    folders = Counter(embedding.folder for embedding in embeddings)
    folder, count = folders.most_common(1)[0]
    if count > 1:
        raise UserError(
            f"expected models of different names, got {folder} {count} times: rename a folder"
        )
    return embeddings


def _models(given: str, options: argparse.Namespace) -> Iterator[tuple[str, Model, str]]:
    """The model, after its frozen original if `--frozen` asks for it."""
    model = model_of(options, model=given, texts=False)
    name = options.name or default_name(model, given)
    # A frozen model is its own original.
    if not options.frozen or not model.trained_parameters:
        yield name, model, ""
        return
    original = f"{name}, frozen"
    yield original, model.original(), ""
    yield name, model, original


def _named(name: str, layer: str) -> str:
    return name if layer == POOLED else f"{name}, {layer}"
