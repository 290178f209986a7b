"""The model card of an export: what it is, how to load it, how it scores, what it cannot do."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Result

CARD = """\
---
library_name: vlmtune
tags: [vision-language, compositionality, adapter]
---

# {name}

`{adapter}` trained on `{backbone}` with vlmtune, so that captions are read as more than bags of
words: which attribute belongs to which object, which relation holds between which.
This folder holds what is trained ({values:,} numbers) and nothing of what stayed frozen.

## How to load it

```python
import vlmtune
model = vlmtune.load("path/to/{name}")  # this folder, or the id of a hub repository
print(model.score(["image.jpg"], ["a red cube on a blue sphere", "a blue cube on a red sphere"]))
```

`model.rank(query, images)` sorts images by a query. {embeddings}

## Base model

`{backbone_class}` with `{backbone_arguments}`, fingerprint `{fingerprint}`. It is loaded by itself
and must have exactly the weights the adapter was trained on; its own licence applies.

## Training

{training}

## Scores

{scores}

## Limitations

- Scores order images for a caption and captions for an image; they are no probabilities.
- The scores above hold for the benchmarks they name. Binding of words, relations and domains the
  training data did not show may be no better than the base model's.
- What the base model got wrong or is biased towards (its training data, its image resolution,
  its caption length) is inherited.
"""


def model_card(name: str, config: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Writes the README.md of an export.

    Args:
        name: Name of the export.
        config: The content of its `adapter_config.json`.
        results: What it scored, if it was measured.
    """
    backbone, adapter = config["backbone"], config["adapter"]
    arguments = {key: value for key, value in backbone["init_args"].items() if value is not None}
    return CARD.format(
        name=name,
        adapter=_short(adapter["class_path"]),
        backbone=arguments.get("model", _short(backbone["class_path"])),
        values=config["trained_values"],
        embeddings="`model.encode_image` and `model.encode_text` give normalised embeddings where "
        "the adapter has them.",
        backbone_class=backbone["class_path"],
        backbone_arguments=json.dumps(arguments),
        fingerprint=backbone["fingerprint"],
        training=_training(config),
        scores=_scores(results),
    )


def _training(config: Mapping[str, Any]) -> str:
    facts = config["provenance"]
    lines = [f"- adapter: `{json.dumps(config['adapter'])}`"]
    if (alpha := config["alpha"]) != 1:
        lines.append(
            f"- weights: {1 - alpha:.4g} of those before training and {alpha:.4g} of the trained "
            f"ones (WiSE-FT, Wortsman et al. 2022; alpha {alpha:.4g})"
        )
    for key in ("data", "date", "commit"):
        if facts.get(key):
            lines.append(f"- {key}: {facts[key]}")
    if facts.get("versions"):
        versions = (f"{library} {version}" for library, version in facts["versions"].items())
        lines.append(f"- versions: {', '.join(versions)}")
    if facts.get("config"):
        lines.append("- configuration: `provenance.config` of `adapter_config.json`")
    return "\n".join(lines)


def _scores(results: Sequence[Result]) -> str:
    if not results:
        return "Not measured: `vlmtune evaluate --model FOLDER --benchmarks ...` does it."
    lines = ["| benchmark | metric | score | 95 % interval | chance | n |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for result in results:
        for name, metric in result.metrics.items():
            shown = f"**{name}**" if name == result.primary else name
            span = f"{_number(metric.low, metric)} to {_number(metric.high, metric)}"
            cells = [
                f"{result.benchmark} (v{result.version})",
                f"{shown} {'↑' if metric.higher_is_better else '↓'}",
                _number(metric.value, metric),
                "–" if metric.low is None or metric.high is None else span,
                _number(metric.chance, metric),
                str(metric.n),
            ]
            lines.append(f"| {' | '.join(' '.join(c.split()).replace('|', '/') for c in cells)} |")
    return "\n".join(lines)


def _number(value: float | None, metric: MetricValue) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if metric.unit == "fraction" else f"{value:.4g}"


def _short(class_path: str) -> str:
    return class_path.rpartition(".")[2]
