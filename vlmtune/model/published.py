"""Weights by the name of their source: `published:negclip`, or `published:scenes/prompts`.

In: a name, and files that `vlmtune download` brought or that come with vlmtune. Out: what `load`
takes, and LABCLIP's map as an adapter. Never: a download.
"""

from pathlib import Path

from vlmtune.adapters.text_map import TextMap
from vlmtune.backbones.state_dicts import read_state_dict
from vlmtune.config import ROOT, data_root
from vlmtune.errors import UserError
from vlmtune.model.model import Model
from vlmtune.sources.source import Published, sources

PREFIX = "published:"
SOURCE = "weights_"
"""What the names of the sources of weights start with."""


def find_published(name: str) -> tuple[Path, Published]:
    """Returns the file or folder of published weights, and how they are loaded."""
    source = SOURCE + name.removeprefix(PREFIX)
    known = {stem: one.model for stem, one in sources().items() if one.model is not None}
    if source not in known:
        names = ", ".join(stem.removeprefix(SOURCE) for stem in known)
        raise UserError(
            f"expected the name of published weights, got {name!r}: name one of {names}"
        )
    comes_with_vlmtune = sources()[source].access == "shipped"
    root = ROOT if comes_with_vlmtune else data_root()
    path = root / known[source].file
    if not path.exists():
        raise UserError(
            f"expected the weights {path}, got no such file: run `vlmtune download {source}`"
        )
    return path, known[source]


def with_text_map(model: Model, file: Path) -> Model:
    """Puts LABCLIP's map of text embeddings onto its base model.

    The file holds `linear.weight` (d x d) and `t`, the logarithm of the scale.
    """
    state = read_state_dict(file)
    size = model.backbone.embed_dim
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    is_map = shapes.get("linear.weight") == (size, size)
    if not is_map or "t" not in state or state["t"].numel() != 1:
        raise UserError(
            f"expected linear.weight ({size} x {size}) and t in {file}, got {shapes}: get the file "
            "again"
        )
    initial_scale = state["t"].float().exp()  # `t` is its logarithm
    adapter = TextMap(initial_scale=initial_scale.item())
    adapter.attach(model.backbone)
    adapter.text.weight.data.copy_(state["linear.weight"])
    return Model(model.backbone, adapter.eval())
