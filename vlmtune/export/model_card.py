"""The model card of an export: what it is, how to load it, its scores and its limitations.

In: the configuration of an export and its results. Out: Markdown. Never: a number not in them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vlmtune.model.hub import is_hub_id
from vlmtune.model.loading import foreign_packages
from vlmtune.report.table import chance, interval, number, size, titled
from vlmtune.results.result import Result

TASK = "zero-shot-image-classification"
CARD = """\
---
{front_matter}
---

# {name}

`{adapter}` for `{backbone}`, trained with vlmtune. This folder holds the {values:,} trained
parameters and none of the frozen ones. What it reads better than the base model, and what worse, is
what the scores below show and no more.

## How to load it

{loading}

## Base model

`{backbone_class}` with `{backbone_arguments}`, fingerprint `{fingerprint}`. Its own
licence applies.

## Training

{training}

## Scores

{scores}

## Limitations

- Scores rank images for a caption and captions for an image. They are not probabilities.
- Numbers hold for their benchmarks only. On words, relations and domains that the
  training data lacks, the model may be no better than the base model.
- The model inherits the base model's errors and biases, its image resolution and its limit on
  caption length.
"""

LOADING = """\
```python
import vlmtune
model = vlmtune.load("path/to/{name}"{packages})  # this folder, or the id of a hub repository
print(model.score(["image.jpg"], ["a red cube on a blue sphere", "a blue cube on a red sphere"]))
```

`model.rank(query, images)` ranks images for a caption. If the adapter has separate image and text
embeddings, `model.encode_image` and `model.encode_text` return them, normalised.

vlmtune loads the base model separately and checks that its weights are the ones the adapter was
trained on."""
PEFT_LOADING = """\
```python
from peft import AutoPeftModel
model = AutoPeftModel.from_pretrained("path/to/{name}")
```
"""
PEFT_OPEN_CLIP = """\
```python
import open_clip
from peft import PeftModel
base = open_clip.create_model(...)
model = PeftModel.from_pretrained(base, "path/to/{name}")
```
"""
READ_BACK = """
`vlmtune.load("path/to/{name}"{packages})` loads it too, merged into its base model. The base model
must be the one below, which PEFT does not check."""


def model_card(
    name: str, config: Mapping[str, Any], results: Sequence[Result], peft: bool = False
) -> str:
    """Writes the README.md of an export with this `adapter_config.json` and these results.

    `peft` is whether the folder is one of PEFT.
    """
    backbone = config["backbone"]
    adapter = config["adapter"]
    options = backbone["init_args"]
    arguments = {key: value for key, value in options.items() if value is not None}
    loading = LOADING
    if peft:
        # The base model of transformers is named in the configuration.
        in_open_clip = ".open_clip." in backbone["class_path"]
        example = PEFT_OPEN_CLIP if in_open_clip else PEFT_LOADING
        loading = example + READ_BACK
    packages = foreign_packages(backbone, adapter)
    more = f", packages={json.dumps(packages)}" if packages else ""
    return CARD.format(
        name=name,
        front_matter=front_matter(name, config, peft),
        loading=loading.format(name=name, packages=more),
        adapter=_short(adapter["class_path"]),
        backbone=arguments.get("model", _short(backbone["class_path"])),
        values=config["trained_values"],
        backbone_class=backbone["class_path"],
        backbone_arguments=json.dumps(arguments),
        fingerprint=backbone["fingerprint"],
        training=_training(config, peft),
        scores=_scores(results),
    )


def front_matter(name: str, config: Mapping[str, Any], peft: bool = False) -> str:
    """The YAML that the hub reads, with the primary metrics as its `model-index`.

    All metrics would fill a thousand lines; the table of the card has them.
    """
    source = config["backbone"]["init_args"]
    model = str(source.get("model", "")).removeprefix("hf-hub:")
    # A name of open_clip, or a folder, does not name a model on the hub.
    base = model if is_hub_id(model, source.get("pretrained")) else None
    library = "peft" if peft else "vlmtune"
    measured = []
    for scores in config["scores"]:
        benchmark = scores["benchmark"]
        convention = scores.get("convention", "strict")  # some shipped exports have none
        metric = scores["primary"]
        entry = EvalResult(
            task_type=TASK,
            dataset_type=benchmark,
            dataset_name=titled(benchmark, convention),
            metric_type=metric,
            metric_value=scores["metrics"][metric]["value"],
        )
        measured.append(entry)
    data = ModelCardData(
        base_model=base,
        library_name=library,
        license=config.get("licence"),
        pipeline_tag=TASK,
        tags=["vision-language", "adapter", "vlmtune"],
        model_name=name,
        eval_results=measured or None,
    )
    return data.to_yaml()


def _training(config: Mapping[str, Any], peft: bool) -> str:
    facts = config["provenance"]
    lines = [f"- adapter: `{json.dumps(config['adapter'])}`"]
    alpha = config["alpha"]
    if alpha != 1:
        lines.append(
            f"- weights: {1 - alpha:.4g} times the initial plus {alpha:.4g} times the trained ones "
            f"(WiSE-FT, Wortsman et al. 2022; alpha {alpha:.4g})"
        )
    for name, value in _recipe(facts).items():
        if value != "":
            lines.append(f"- {name}: {value}")
    for key in ("date", "commit"):
        if facts.get(key) not in (None, "", "unknown"):
            lines.append(f"- {key}: {facts[key]}")
    if facts.get("versions"):
        versions = (f"{library} {version}" for library, version in facts["versions"].items())
        lines.append(f"- versions: {', '.join(versions)}")
    # The configuration of PEFT has no room for it.
    if facts.get("config") and not peft:
        lines.append("- configuration: `provenance.config` of `adapter_config.json`")
    return "\n".join(lines)


def _recipe(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What was trained on what and how; "" for what is not known."""
    config = _mapping(facts, "config")
    model = _mapping(_mapping(config, "fit"), "model")
    # A model of a config may be named by its class path or by its fields.
    model = _mapping(model, "init_args") or model
    objectives = config.get("objectives")
    listed = objectives if isinstance(objectives, list) else []
    optimizer = _plugin(model["optimizer"]) if model.get("optimizer") else ""
    # Zero is a seed like any other.
    seed = facts.get("seed")
    if seed is None:
        seed = ""
    return {
        "data": facts.get("data") or "",
        "steps": config.get("steps", ""),
        "objectives": ", ".join(map(_plugin, listed)),
        "optimizer": optimizer,
        "seed": seed,
    }


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping in a mapping; empty if a file holds something else there."""
    inner = values.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _plugin(spec: Any) -> str:
    """A class with its arguments, of a spec; a name as it is.

    Example:
        >>> _plugin({"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01, "foreach": None}})
        'AdamW (lr 0.01)'
        >>> _plugin("InfoNCE")
        'InfoNCE'
    """
    if not isinstance(spec, Mapping):
        return str(spec)
    name = _short(str(spec.get("class_path", "")))
    arguments = _mapping(spec, "init_args")
    given = [f"{key} {value}" for key, value in arguments.items() if value is not None]
    return f"{name} ({', '.join(given)})" if given else name


def _scores(results: Sequence[Result]) -> str:
    if not results:
        return (
            "Not measured: nothing is known of what this training changed. Run `vlmtune evaluate "
            "--model FOLDER --benchmarks ...`, and export again with `--report`."
        )
    lines = ["| benchmark | metric | score | 95 % interval | chance | n |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for result in results:
        for name, metric in result.metrics.items():
            # Bold marks the number that a benchmark is known by.
            label = f"**{name}**" if name == result.primary else name
            arrow = "↑" if metric.higher_is_better else "↓"
            cells = [
                f"{titled(result.benchmark, result.convention)} (v{result.version})",
                f"{label} {arrow}",
                number(metric.value, metric.unit),
                interval(metric) or "–",
                chance(metric),
                size(metric),
            ]
            # A line break or a bar would end the cell.
            cells = [" ".join(cell.split()).replace("|", "/") for cell in cells]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(class_path: str) -> str:
    return class_path.rpartition(".")[2]
