"""Imports point only upstream: shard -> batch -> features -> scores -> loss or metric -> report."""

from graphlib import CycleError, TopologicalSorter

import pytest

from scripts import layers as reading
from scripts.layers import Import, package_of, sources

BASICS = {"types", "errors", "config"}
# Part of the package -> what its files may import besides their own part. A part is a file or a
# folder of vlmtune/; "backbones" allows all of it, "backbones.base" that file alone.
UPSTREAM = {
    "errors": set(),
    "types": set(),
    "config": {"errors"},
    "storage": {"errors"},
    "distributed": {"types", "errors"},
    "language": {"errors", "config"},
    "pairs": BASICS,
    "data": BASICS | {"language", "storage"},
    "backbones": BASICS | {"storage.files"},
    "features": {"types", "errors", "storage", "data.images", "data.rgb"}
    | {"backbones.base", "backbones.evaluation_mode"},
    "adapters": BASICS
    | {"backbones.base", "backbones.advice", "backbones.evaluation_mode", "storage.files"},
    "objectives": BASICS | {"distributed"},
    "results": {"types"},
    "metrics": BASICS | {"results"},
    "report": {"types", "errors", "metrics", "results", "storage", "data.images", "data.tables"},
    "benchmarks": BASICS
    | {"metrics", "language", "data.schema", "data.table_rows", "data.distinct_images"}
    | {"results", "storage.files"},
    "mining": {"types", "errors", "storage", "data", "features", "model.model"},
    "evaluation": {"types", "errors", "distributed", "storage", "features", "language"}
    | {"results", "adapters.base"}
    | {"benchmarks.base", "benchmarks.pair_scorer", "benchmarks.rules.classification"}
    | {"backbones.base", "backbones.evaluation_mode"},
    "model": BASICS | {"backbones", "adapters", "evaluation", "storage"},
    "export": BASICS | {"backbones", "adapters", "model", "results", "storage", "report.table"},
    "probing": {"types", "errors", "config", "storage", "features", "metrics", "model", "results"}
    | {"data.images", "data.tables", "data.table_rows"}
    | {"data.schema", "data.shards", "data.tar_records"}
    | {"adapters.base", "backbones.base", "backbones.evaluation_mode", "report"},
    "search": {"types", "errors", "storage", "features", "data.images", "model"}
    | {"backbones.evaluation_mode", "adapters.base", "adapters.zero_shot"},
    "training": BASICS
    | {"distributed", "pairs", "features", "backbones.base", "adapters.base", "objectives.base"}
    | {"adapters.trained_state"}
    | {"benchmarks.base", "report", "results", "model", "evaluation", "storage.secrets"},
    # The one file of training that names methods.
    "training.methods": BASICS | {"pairs", "backbones.base", "adapters", "objectives", "training"},
    "cli": BASICS
    | {"benchmarks", "data", "report", "evaluation", "training", "model", "export", "mining"}
    | {"search", "probing", "results", "storage"},
    "__init__": set(),  # lazy: names of rooms, imported on use
    "__main__": {"cli"},
}
BUILDERS_MAY_IMPORT = BASICS | {"storage", "data.schema", "data.images", "data.tables"}
BUILDERS_MAY_IMPORT |= {"data.table_rows", "data.distinct_images", "data.rendered"}
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
LIGHTNING_IN = {"training", "cli", "data.datamodule"}
NO_PROCESS_GROUP_IN = {"objectives", "metrics", "benchmarks"}


SOURCES = sources("vlmtune", "data_builders")


def imports(source: str, modules: dict[str, str] = SOURCES) -> set[Import]:
    """Everything that a source imports."""
    return reading.imports(source, modules)


def allowed(inner: str, permitted: set[str]) -> bool:
    """Whether `inner`, a module without "vlmtune.", is one of those permitted or lies in one."""
    return any(inner == one or inner.startswith(f"{one}.") for one in permitted)


def faults(module: str, source: str) -> list[str]:
    """What a file may not import."""
    found = imports(source)
    inside = {i for i in found if i.module.split(".")[0] in ("vlmtune", "data_builders")}
    foreign = {i.module for i in found - inside}
    package, part = module.split(".")[0], package_of(module)
    inner = module.partition(".")[2]
    out = []
    if package == "data_builders":
        permitted = BUILDERS_MAY_IMPORT
    elif part not in UPSTREAM:
        return [f"vlmtune.{part} is new: say in UPSTREAM what it may import"]
    else:
        alone = "." in inner and inner in UPSTREAM
        permitted = UPSTREAM[inner] if alone else UPSTREAM[part] | {part}
    for target, at_once in sorted(inside):
        to, _, rest = target.partition(".")
        if to == "data_builders":
            if package != to and not (part == "cli" and not at_once):
                out.append(f"{module} imports {target}: only functions of cli may")
        elif rest and not allowed(rest, permitted):
            out.append(f"{module} imports {target}: it may import {sorted(permitted)}")
    if any(name.split(".")[0] in LIGHTNING for name in foreign) and not (
        package == "vlmtune" and allowed(inner, LIGHTNING_IN)
    ):
        out.append(f"{module} imports Lightning: only {sorted(LIGHTNING_IN)} may")
    if part in NO_PROCESS_GROUP_IN and package == "vlmtune":
        out += [
            f"{module} imports torch.distributed: it must work without a process group"
            for name in foreign
            if name.startswith("torch.distributed")
        ]
    return out


def reached(start: str, sources: dict[str, str]) -> set[str]:
    """All modules, foreign ones too, whose import begins when `start` is imported."""
    seen, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        waiting += [i.module for i in imports(sources.get(module, ""), sources) if i.at_once]
        parent = module.rpartition(".")[0]
        waiting += [parent] if parent in sources else []
    return seen


def cycle(sources: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle as they are loaded; empty where there is none."""
    graph = {
        module: {i.module for i in imports(source, sources) if i.at_once and i.module != module}
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_upstream(module):
    assert faults(module, SOURCES[module]) == []


def test_the_table_has_no_part_that_is_gone():
    parts = {package_of(module) for module in SOURCES if "vlmtune" in module}
    assert UPSTREAM.keys() <= parts | {module.partition(".")[2] for module in SOURCES}


def test_the_table_is_no_circle():
    TopologicalSorter(
        {
            part: {one.split(".")[0] for one in permitted}
            for part, permitted in UPSTREAM.items()
            if "." not in part
        }
    ).prepare()


def test_no_module_imports_itself_by_way_of_others():
    assert cycle(SOURCES) == []


@pytest.mark.parametrize(
    "entry", ["vlmtune.model.resolving", "vlmtune.evaluation.suite", "vlmtune.benchmarks.base"]
)
def test_inference_needs_no_lightning(entry):
    modules = reached(entry, SOURCES)
    assert "torch" in modules
    assert not {name.split(".")[0] for name in modules} & LIGHTNING


def test_help_needs_no_torch():
    modules = reached("vlmtune.cli.main", SOURCES)
    assert "vlmtune.errors" in modules
    assert not {name.split(".")[0] for name in modules} & {"torch", "open_clip", *LIGHTNING}


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("vlmtune.adapters.toy", "from vlmtune.objectives.base import Objective", "may import"),
        (
            "vlmtune.adapters.toy",
            "from vlmtune.backbones.open_clip.open_clip import OpenClip",
            "may import",
        ),
        ("vlmtune.adapters.toy", "from vlmtune.backbones import open_clip", "may import"),
        ("vlmtune.adapters.toy", "import vlmtune.training.module", "may import"),
        ("vlmtune.adapters.toy", "def f():\n    from vlmtune.data.loader import x", "may import"),
        (
            "vlmtune.adapters.toy",
            "import importlib as i\ni.import_module('vlmtune.cli.main')",
            "may",
        ),
        ("vlmtune.adapters.toy", "import pytorch_lightning as pl", "Lightning"),
        (
            "vlmtune.training.module",
            "from vlmtune.adapters.zero_shot import ZeroShot",
            "may import",
        ),
        ("vlmtune.metrics.toy", "from vlmtune.objectives.base import x", "may import"),
        ("vlmtune.metrics.toy", "import torch.distributed as dist", "process group"),
        ("vlmtune.benchmarks.toy", "from vlmtune.data.shards import ShardSet", "may import"),
        ("vlmtune.data.stream", "from lightning.pytorch import Trainer", "Lightning"),
        ("vlmtune.types", "from vlmtune.errors import UserError", "may import"),
        ("vlmtune.new", "import torch", "say in UPSTREAM"),
        ("vlmtune.cli.build", "from data_builders.shard_builder import Builder", "only functions"),
        ("vlmtune.export", "def f():\n    import data_builders.corpora.cola", "only functions"),
        ("data_builders.toy", "from vlmtune.data.shards import ShardSet", "may import"),
        ("data_builders.toy", "import lightning", "Lightning"),
    ],
)
def test_the_rule_bites(module, source, fault):
    (said,) = faults(module, source)
    assert fault in said


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vlmtune.adapters.toy", "from vlmtune.adapters.base import Adapter\nimport torch"),
        ("vlmtune.adapters.toy", "from vlmtune.backbones import base"),
        ("vlmtune.benchmarks.toy", "from vlmtune.data.schema import decode"),
        ("vlmtune.cli.build", "def run():\n    from data_builders.shard_builder import Builder"),
        ("vlmtune.data.datamodule", "from pytorch_lightning import LightningDataModule"),
        ("data_builders.toy", "from data_builders.records import x\nimport vlmtune.data.schema"),
        ("vlmtune.export.model_card", "import vlmtune\nfrom vlmtune import __version__"),
    ],
)
def test_the_rule_lets_pass_what_is_right(module, source):
    assert faults(module, source) == []


def test_relative_imports_are_refused():
    with pytest.raises(AssertionError, match="relative"):
        imports("from .base import Adapter")


def test_circles_are_found():
    sources = {"vlmtune.a": "import vlmtune.b", "vlmtune.b": "from vlmtune import a"}
    assert set(cycle(sources)) == sources.keys()
    sources["vlmtune.b"] = "def f():\n    from vlmtune import a"
    assert cycle(sources) == []
    sources["vlmtune.b"] = "if TYPE_CHECKING:\n    from vlmtune import a"
    assert cycle(sources) == []
