"""Writes docs/matrix.md: which adapter works on which backbone.

In: the YAMLs of configs/plugins/adapters and of configs/plugins/backbones, and tiny random models.
Out: the page. Never: a number, as the models are random.

Each pair is tried as a user would: one training step by Lightning's trainer, then one scored pair.
A pair that vlmtune refuses is listed with the one line that it prints.
"""

import copy
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytorch_lightning as pl
import torch
import yaml
from transformers.utils import logging

from tests.backbones.kinds import tiny_backbone
from tests.runs import quiet_trainer
from tests.tiny import halves, write_shards
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.cli.fit import NOISE
from vlmtune.config import ROOT, Spec, instantiate
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.training.module import AdaptationModule
from vlmtune.types import FeatureSpec

PAGE = ROOT / "docs/matrix.md"
PLUGINS = ROOT / "configs/plugins"
TEXT = "a red cube left of the blue sphere"
HEAD = """\
# Adapters by backbones

`python -m scripts.matrix` writes this page, and a test compares it with what runs. Each adapter of
`configs/plugins/adapters` is built on a tiny random model of each backbone of
`configs/plugins/backbones`, trained for one step and asked for one score.

An adapter with *embeddings* has a vector of each image and of each text, and any index can search
them. An adapter with *pairs* reads image and text together; in `vlmtune search` the backbone's
embeddings choose the pairs. A dash means the pair is an error: the reasons are below. Backbones on
which every adapter does the same share a column.

"""


INPUTS = """\
Layers are counted from the end; -1 is the last. A state also has the special tokens. What is live
goes through the trained backbone in each step; everything else is frozen and computed once.
"""


@dataclass(frozen=True)
class Outcome:
    """What became of an adapter on a backbone.

    Attributes:
        scores: "embeddings" or "pairs"; None for a refused pair.
        inputs: What it reads of images and of texts.
        trained: "adapter", "backbone", "both" or "nothing": whose weights the step changed.
        refusal: The line that a user gets.
    """

    scores: str | None = None
    inputs: str = ""
    trained: str = ""
    refusal: str = ""


def plugins(kind: str) -> dict[str, Spec]:
    """The specs of all plug-ins of a kind, by stem."""
    files = sorted((PLUGINS / kind).glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def tried(spec: Spec, model: Backbone, shards: Path, folder: Path) -> Outcome:
    """Trains the adapter on a copy of the model for a step, and scores a pair."""
    backbone, adapter = copy.deepcopy(model), instantiate(spec, Adapter)
    torch.manual_seed(0)
    image = folder / "image.png"
    halves("red", "blue").save(image)
    try:
        if _trains(spec, model):
            changed = _step(AdaptationModule(backbone, adapter, [PairBCE()]), shards)
        else:
            adapter.attach(backbone)
            changed = "nothing"
        score = Scorer(backbone, adapter)([image], [TEXT])
    except UserError as error:
        return Outcome(refusal=str(error))
    assert score.shape == (1, 1)
    assert score.isfinite().all()
    inputs = f"{_reading(adapter.image_input)} | {_reading(adapter.text_input)}"
    scores = "pairs" if adapter.joint else "embeddings"
    return Outcome(scores, inputs, changed)


def _trains(spec: Spec, model: Backbone) -> bool:
    """Whether the adapter has anything to train on this backbone."""
    backbone, adapter = copy.deepcopy(model), instantiate(spec, Adapter)
    adapter.attach(backbone)
    weights = [*backbone.parameters(), *adapter.parameters()]
    return any(weight.requires_grad for weight in weights)


def _step(module: AdaptationModule, shards: Path) -> str:
    """Whose weights a training step changes."""
    data = ShardDataModule([ShardSet(str(shards))], batch_size=4)
    before: dict[str, torch.Tensor] = {}

    class Watch(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            state = trained_state(module.backbone, module.adapter)
            before.update({name: value.detach().clone() for name, value in state.items()})

    trainer = quiet_trainer(max_steps=1, devices=1, callbacks=[Watch()])
    trainer.fit(module, data)
    after = trained_state(module.backbone, module.adapter)
    owners = {name.split(".")[0] for name in before if not before[name].equal(after[name])}
    return " and ".join(sorted(owners)) or "nothing"


def _reading(spec: FeatureSpec) -> str:
    """What an adapter reads of a modality."""
    kinds = {"pooled": "embedding", "words": "word embeddings"}
    read = kinds.get(spec.kind, f"{spec.kind} of layer {spec.layer}")
    return read if spec.frozen else f"{read}, live"


def outcomes() -> dict[str, dict[str, Outcome]]:
    """The outcome of each adapter on each backbone, by stems."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = write_shards(folder / "shards")
        backbones = {stem: tiny_backbone(stem, folder / stem) for stem in plugins("backbones")}
        results: dict[str, dict[str, Outcome]] = {}
        for stem, spec in plugins("adapters").items():
            results[stem] = {x: tried(spec, m, shards, folder) for x, m in backbones.items()}
        return results


def page(results: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The text of docs/matrix.md."""
    # Backbones on which every adapter does the same share a column.
    columns: dict[tuple[str, ...], list[str]] = {}
    for backbone in next(iter(results.values())):
        cells = tuple(row[backbone].scores or "–" for row in results.values())
        columns.setdefault(cells, []).append(backbone)
    header = " | ".join(map(", ".join, columns.values()))
    lines = [f"| | {header} |", f"| --- |{' --- |' * len(columns)}"]
    for adapter, scores in zip(results, zip(*columns, strict=True), strict=True):
        lines.append(f"| {adapter} | {' | '.join(scores)} |")
    lines += ["", "## What an adapter reads and trains", "", INPUTS]
    lines += ["| | of an image | of a text | trained |", "| --- | --- | --- | --- |"]
    for adapter, row in results.items():
        alike: dict[tuple[str, str], list[str]] = {}
        for backbone, outcome in row.items():
            if outcome.scores:
                alike.setdefault((outcome.inputs, outcome.trained), []).append(backbone)
        for (inputs, trained), listed in alike.items():
            name = adapter if len(alike) == 1 else f"{adapter} on {', '.join(listed)}"
            lines.append(f"| {name} | {inputs} | {trained} |")
    lines += ["", "## Refused pairs", "", "| | printed before the first step |", "| --- | --- |"]
    refused: dict[str, list[str]] = {}
    for adapter, row in results.items():
        for backbone, outcome in row.items():
            if outcome.refusal:
                refused.setdefault(outcome.refusal, []).append(f"{adapter} on {backbone}")
    lines += [f"| {', '.join(pairs)} | {refusal} |" for refusal, pairs in refused.items()]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)
    PAGE.write_text(page(outcomes()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
