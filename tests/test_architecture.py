"""Imports point only upstream: shard -> batch -> features -> scores -> loss or metric -> report."""

from graphlib import CycleError, TopologicalSorter

import pytest

from tests.imports import imports, package_of, sources

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
    "report": {
        "types",
        "errors",
        "metrics",
        "results",
        "storage",
        "data.images",
        "features.stored_pixels",
        "data.tables",
    },
    "benchmarks": BASICS
    | {"metrics", "language", "data.schema", "data.tables", "data.table_columns"}
    | {"data.table_rows"}
    | {"data.distinct_images", "results", "storage.files", "storage.image_files"},
    "mining": {"types", "errors", "storage", "data", "features", "language", "model.model"},
    "evaluation": {"types", "errors", "distributed", "storage", "features", "language"}
    | {"results", "adapters.base"}
    | {"benchmarks.base", "benchmarks.items", "benchmarks.pair_scorer"}
    | {"backbones.base", "backbones.evaluation_mode"},
    "model": BASICS
    | {"backbones", "adapters", "data.images", "evaluation", "storage", "sources.source"},
    "export": BASICS | {"backbones", "adapters", "model", "results", "storage", "report.table"},
    "probing": {"types", "errors", "config", "storage", "features", "metrics", "model", "results"}
    | {"data.images", "data.tables", "data.table_rows"}
    | {"data.table_columns", "data.distinct_images"}
    | {"data.schema", "data.shards", "data.tar_records"}
    | {"adapters.base", "backbones.base", "backbones.evaluation_mode", "report"},
    "search": {"types", "errors", "storage", "features", "data.images", "model"}
    | {"backbones.evaluation_mode", "adapters.base", "adapters.zero_shot"},
    "sources": BASICS | {"storage", "benchmarks", "data.tables"},
    "training": BASICS
    | {"distributed", "pairs", "features", "backbones.base", "adapters.base", "objectives.base"}
    | {"adapters.trained_state"}
    | {"benchmarks.base", "report", "results", "model", "evaluation", "storage"}
    | {"metrics.torchmetrics", "sources.downloads"},
    # The one file of training that names methods.
    "training.methods": BASICS | {"pairs", "backbones.base", "adapters", "objectives", "training"},
    "cli": BASICS
    | {"benchmarks", "data", "report", "evaluation", "training", "model", "export", "mining"}
    | {"search", "probing", "results", "storage", "sources"},
    "__init__": set(),  # lazy: names of rooms, imported on use
    "__main__": {"cli"},
}
BUILDERS_MAY_IMPORT = BASICS | {"storage", "data.schema", "data.images", "data.tables"}
BUILDERS_MAY_IMPORT |= {"data.table_rows", "data.distinct_images", "data.rendered"}
BUILDERS_MAY_IMPORT |= {"sources.source", "language"}
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
LIGHTNING_IN = {"training", "cli", "data.datamodule"}
NO_PROCESS_GROUP_IN = {"objectives", "metrics", "benchmarks"}
# The core: what a fit, an evaluation, an export and a report load, without the plug-ins they name.
CORE = tuple(f"vlmtune.cli.{command}" for command in ("fit", "evaluate", "export", "report"))
SIDE_ROOMS = {"mining", "probing", "search", "sources"}
CORE_LINES = 24_000


SOURCES = sources("vlmtune", "data_builders")


def allowed(inner: str, permitted: set[str]) -> bool:
    """Whether `inner`, a module without "vlmtune.", is one of those permitted or lies in one."""
    return any(inner == one or inner.startswith(f"{one}.") for one in permitted)


def faults(module: str, source: str) -> list[str]:
    """What a file may not import."""
    found = imports(source, SOURCES)
    inside = {i for i in found if i.module.split(".")[0] in ("vlmtune", "data_builders")}
    foreign = {i.module for i in found - inside}
    package, _, inner = module.partition(".")
    part = package_of(module)
    if package == "data_builders":
        permitted = BUILDERS_MAY_IMPORT
    elif part not in UPSTREAM:
        return [f"vlmtune.{part} is new: say in UPSTREAM what it may import"]
    else:
        alone = "." in inner and inner in UPSTREAM
        permitted = UPSTREAM[inner] if alone else UPSTREAM[part] | {part}
    out = []
    for target, at_once in sorted(inside):
        to, _, rest = target.partition(".")
        if to == "data_builders":
            if package != to and (part != "cli" or at_once):
                out.append(f"{module} imports {target}: only functions of cli may")
        elif rest and not allowed(rest, permitted):
            out.append(f"{module} imports {target}: it may import {sorted(permitted)}")
    for name in foreign:
        of_vlmtune = package == "vlmtune"
        if name.split(".")[0] in LIGHTNING and not (of_vlmtune and allowed(inner, LIGHTNING_IN)):
            out.append(f"{module} imports Lightning: only {sorted(LIGHTNING_IN)} may")
        if name.startswith("torch.distributed") and of_vlmtune and part in NO_PROCESS_GROUP_IN:
            out.append(f"{module} imports torch.distributed: it must work without a process group")
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
    graph = TopologicalSorter()
    for module, source in sources.items():
        loaded = {found.module for found in imports(source, sources) if found.at_once}
        graph.add(module, *(loaded - {module}))
    try:
        graph.prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_the_core_is_small():
    """`pytest -s -k core_is_small` prints its size."""
    modules = set().union(*(reached(entry, SOURCES) for entry in CORE)) & SOURCES.keys()
    lines = sum(len(SOURCES[module].splitlines()) for module in modules)
    print(f"core: {len(modules)} modules, {lines:,} lines")
    assert not {package_of(module) for module in modules} & SIDE_ROOMS
    assert lines <= CORE_LINES


def test_imports_point_upstream():
    assert [fault for module, source in SOURCES.items() for fault in faults(module, source)] == []


def test_the_table_has_no_part_that_is_gone():
    parts = {package_of(module) for module in SOURCES if "vlmtune" in module}
    assert UPSTREAM.keys() <= parts | {module.partition(".")[2] for module in SOURCES}


def test_the_table_is_no_circle():
    graph = TopologicalSorter()
    for part, permitted in UPSTREAM.items():
        if "." not in part:
            graph.add(part, *(one.split(".")[0] for one in permitted))
    graph.prepare()


def test_no_module_imports_itself_by_way_of_others():
    assert cycle(SOURCES) == []


@pytest.mark.parametrize(
    ("entry", "needed", "heavy"),
    [
        ("vlmtune.model.resolving", "torch", LIGHTNING),
        ("vlmtune.evaluation.suite", "torch", LIGHTNING),
        ("vlmtune.benchmarks.base", "torch", LIGHTNING),
        ("vlmtune.cli.main", "vlmtune.errors", {"torch", "open_clip", *LIGHTNING}),
    ],
)
def test_inference_needs_no_lightning_and_help_no_torch(entry, needed, heavy):
    modules = reached(entry, SOURCES)
    assert needed in modules
    assert not {name.split(".")[0] for name in modules} & heavy


TOY = "vlmtune.adapters.toy"


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        (TOY, "from vlmtune.objectives.base import Objective", "may import"),
        (TOY, "from vlmtune.backbones.open_clip.open_clip import OpenClip", "may import"),
        (TOY, "from vlmtune.backbones import open_clip", "may import"),
        (TOY, "import vlmtune.training.module", "may import"),
        (TOY, "def f():\n    from vlmtune.data.loader import x", "may import"),
        (TOY, "import importlib as i\ni.import_module('vlmtune.cli.main')", "may import"),
        (TOY, "import pytorch_lightning as pl", "Lightning"),
        ("vlmtune.training.module", "import vlmtune.adapters.zero_shot", "may import"),
        ("vlmtune.metrics.toy", "import torch.distributed as dist", "process group"),
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


def test_relative_imports_are_refused():
    with pytest.raises(AssertionError, match="relative"):
        imports("from .base import Adapter", SOURCES)


def test_circles_are_found():
    sources = {"vlmtune.a": "import vlmtune.b", "vlmtune.b": "from vlmtune import a"}
    assert set(cycle(sources)) == sources.keys()
    sources["vlmtune.b"] = "def f():\n    from vlmtune import a"
    assert cycle(sources) == []
    sources["vlmtune.b"] = "if TYPE_CHECKING:\n    from vlmtune import a"
    assert cycle(sources) == []
