"""Every YAML under configs: one for each plug-in, and every experiment can be run as it says."""

import copy
import importlib
import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import yaml
from jsonargparse import ArgumentParser, _common, _typehints

from data_builders.shard_builder import Builder
from scripts.configs_page import PAGE, page, summary
from tests.runs import QUIET
from vlmtune.adapters.base import Adapter
from vlmtune.backbones.base import Backbone
from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.build import changes
from vlmtune.cli.commands import command_parser
from vlmtune.cli.fit import VlmtuneCLI
from vlmtune.cli.plugins import find, make, make_benchmarks
from vlmtune.objectives.base import Objective
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.module import AdaptationModule

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
KINDS = {  # folder of configs/plugins -> package, base
    "adapters": ("vlmtune/adapters", Adapter),
    "backbones": ("vlmtune/backbones", Backbone),
    "benchmarks": ("vlmtune/benchmarks", Benchmark),
    "objectives": ("vlmtune/objectives", Objective),
    "pairs": ("vlmtune/pairs", PairPolicy),
    "builders": ("data_builders", Builder),
}
ALL = sorted(CONFIGS.rglob("*.yaml"))
MODULES = sorted((CONFIGS / "plugins/modules").glob("*.yaml"))  # of tests/training/test_methods.py
MODELS = sorted((CONFIGS / "plugins/models").glob("*.yaml"))  # of tests/test_headers.py
PLUGINS = [p for p in ALL if p.relative_to(CONFIGS).parts[:2] in {("plugins", k) for k in KINDS}]
EXPERIMENTS = [path for path in ALL if path.relative_to(CONFIGS).parts[0] == "experiments"]
SWEEPS = [path for path in ALL if path.relative_to(CONFIGS).parts[0] == "sweeps"]
SOURCES = sorted((CONFIGS / "sources").rglob("*.yaml"))  # tests/sources reads them
SUITES = [path for path in EXPERIMENTS if path.parent.name == "compare"]  # of `vlmtune compare`
STATED = [path for path in EXPERIMENTS if path not in SUITES]
RUNS = [path for path in STATED if path.read_text().startswith("# vlmtune fit")]
RECIPES = [path for path in STATED if path not in RUNS]

pytestmark = QUIET


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- plug-ins ---------------------------------------------------------------------------------


def classes(module: str, base: type) -> list[type]:
    """The concrete subclasses of `base` that a module defines."""
    return [
        cls
        for _, cls in inspect.getmembers(importlib.import_module(module), inspect.isclass)
        if cls.__module__ == module and issubclass(cls, base) and not inspect.isabstract(cls)
    ]


def plugins(folder: str, base: type) -> dict[type, tuple[str, ...]]:
    """Plug-in classes, with the folders and the stem of the file that each lies in."""
    places = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem != "__init__":
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            places |= dict.fromkeys(classes(module, base), parts)
    return places


@pytest.mark.parametrize("kind", KINDS)
def test_each_plugin_has_a_config_of_its_name(kind):
    folder, base = KINDS[kind]
    configs = {path.stem for path in (CONFIGS / "plugins" / kind).glob("*.yaml")}
    places = plugins(folder, base)
    built_upon = {cls for cls in places if any(cls in other.__mro__[1:] for other in places)}
    assert configs <= set().union(*places.values())
    for cls, parts in places.items():
        assert cls in built_upon or configs & set(parts), f"{cls} has no config of its name"


@pytest.mark.parametrize("path", PLUGINS, ids=relative)
def test_a_plugin_config_names_the_class_in_the_file_of_its_name_and_its_arguments(path):
    folder, base = KINDS[path.parent.name]
    spec = yaml.safe_load(path.read_text())
    assert list(spec) == ["class_path", "init_args"]
    module, _, name = spec["class_path"].rpartition(".")
    assert f"{module}.".startswith(f"{folder.replace('/', '.')}.")
    assert path.stem in module.split(".")
    cls = getattr(importlib.import_module(module), name)
    assert issubclass(cls, base)
    assert not inspect.isabstract(cls)
    inspect.signature(cls).bind(**spec["init_args"])
    # Parsed, so that values have the right types.
    assert parsed(path).get("init_args", {}).keys() >= spec["init_args"].keys()


def parsed(path: Path):
    parser = ArgumentParser(exit_on_error=False)
    base = KINDS[path.parent.name][1]
    parser.add_subclass_arguments(base, "plugin", required=True, fail_untyped=False)
    return parser.parse_args([f"--plugin={path}"]).as_dict()["plugin"]


# -- experiments ------------------------------------------------------------------------------


# What Lightning sets as it makes the parsers, which do not depend on the words they parse.
PARSERS = ("parser", "_subcommand_parsers", "_subcommand_method_arguments")


adapt_class = _typehints.adapt_class_type
adapted: dict[str, Any] = {}


def adapt_once(*given: Any, **options: Any) -> Any:
    """What jsonargparse makes of the spec of a class: most runs name the same ones many times."""
    state = (Path.cwd(), _typehints.sub_defaults.get(), _common.lenient_check.get())
    key = repr((given, options, state))
    if key in adapted:
        return copy.deepcopy(adapted[key])
    before = repr(options.get("prev_val"))
    made = adapt_class(*given, **options)
    # A class in the place of another takes arguments from what was there before.
    if repr(options.get("prev_val")) == before:
        adapted[key] = copy.deepcopy(made)
    return made


class Parsed(VlmtuneCLI):
    """The command line up to where things would be made, with one parser for all of a command."""

    made: ClassVar[dict] = {}

    def __init__(self, command: str, arguments: list[str]) -> None:
        built = {"--data": "--data.train.path"}  # a table is built before the words are parsed
        with mock.patch.object(_typehints, "adapt_class_type", adapt_once):
            super().__init__(command, [built.get(word, word) for word in arguments])

    def setup_parser(self, *arguments, **options) -> None:
        key = (self.command, self.named)
        if key not in Parsed.made:
            super().setup_parser(*arguments, **options)
            Parsed.made[key] = {name: vars(self)[name] for name in PARSERS}
        vars(self).update(Parsed.made[key])

    def _set_seed(self) -> None: ...

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configs, and nothing in the lists of benchmarks.

    To parse a list takes as long as to parse the rest of a run. The lists are made in
    `test_a_recipe_is_what_the_command_it_starts_with_takes`.
    """
    folder = tmp_path_factory.mktemp("bare")
    for path in ALL:
        content = path.read_text()
        copy = folder / relative(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("[]" if re.search("^[^#]", content, re.M)[0] == "-" else content)
    return folder


def header(path: Path) -> list[str]:
    """The comment block a file starts with."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return lines


def command(path: Path, root: Path, expected: str = "fit") -> list[str]:
    """The command a config starts with, checked to name the config."""
    lines = header(path)
    assert lines, f"{path} must start with a comment: the command that runs it"
    words = shlex.split(lines[0])
    right = words[0] == "vlmtune" and re.fullmatch(expected, words[1])
    assert right, f"{path} starts with {lines[0]!r}, not `vlmtune {expected}`"
    named = [word for word in words if word.endswith(".yaml")]
    assert str(path.relative_to(root)) in named, f"the command of {path} names {named}"
    return words[1:]


def parsed_run(path: Path, root: Path):
    """The complete config of an experiment, by way of its own command."""
    words = command(path, root)
    return Parsed(words[0], words[1:]).config["fit"]


def module_of(model: dict, backbone: Backbone) -> AdaptationModule:
    """What a parsed `model` section trains, over another backbone than its own."""

    def plugin(base, spec):
        kept = {key: spec[key] for key in ("class_path", "init_args") if key in spec}
        return make(base, json.dumps(kept))

    return AdaptationModule(
        backbone,
        plugin(Adapter, model["adapter"]),
        [plugin(Objective, spec) for spec in model["objectives"]],
        plugin(PairPolicy, model["pairs"]) if model["pairs"] else None,
    )


def all_values(value):
    """All leaves of nested dicts and lists."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from all_values(item)
    else:
        yield value


def stated(path: Path) -> list[list[str]]:
    """Every command of ours in the header of a config."""
    return [shlex.split(line)[1:] for line in header(path) if line.startswith("vlmtune ")]


@pytest.mark.parametrize("path", STATED, ids=relative)
def test_every_command_of_a_header_parses(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in stated(path)[1:]:  # the first has tests of its own, here and in test_headers.py
        if words[0] == "fit":
            assert Parsed("fit", words[1:]).config["fit"]["data"]["train"]
        elif "--config" not in words:  # the others are recipes, tested as such
            check_recipe(words, path)


PAPERS = CONFIGS / "experiments"
COLA_TYPES = {  # table 2b: mAP on GQA as all/unseen/seen, accuracy on Cola multi and on CREPE
    "region": "0.4711/0.4965/0.4481 0.3114 0.8833",
    "single": "0.4683/0.4886/0.4499 0.2745 0.9023",
    "multi": "0.4641/0.4795/0.4501 0.3975 0.8702",
    "hard": "0.4688/0.4843/0.4548 0.3483 0.8775",
    "combined": "0.4788/0.4983/0.4612 0.3893 0.8798",
}
COLA_ROWS = {  # strategy -> the backbones that tables 1, 2a and 5 have it for
    **dict.fromkeys(("linear_probe", "mm_pred", "mm_adapter"), ("CLIP", "FLAVA")),
    **dict.fromkeys(("word_prompts", "full_finetuning", "ft_late"), ("CLIP",)),
    **dict.fromkeys(("matching", "joined/mm_adapter", "joined/mm_pred"), ("FLAVA",)),
    **{f"fusion/{style}": ("CLIP",) for style in ("flava", "albef", "mdetr", "fiber", "fiber_mm")},
}
EQSIM_ROWS = (
    *("info_nce", "hard_negative", "v1_all", "v2_all", "v2_close", "v1_all_v2_close"),
    *("paper", "released", "meter/itm", "meter/eqsim"),
)


def keys(path: Path) -> set[str]:
    """The parts of an experiment that a file sets, such as "model.adapter"."""
    content = yaml.safe_load(path.read_text())
    return {f"{part}.{key}" for part, values in content.items() for key in values}


@pytest.mark.parametrize("row", COLA_ROWS)
def test_every_row_of_colas_tables_has_its_command_and_its_numbers(row):
    path = PAPERS / "cola" / f"{row}.yaml"
    commands = [" ".join(words) for words in stated(path)]
    text = path.read_text()
    for backbone in COLA_ROWS[row]:
        on_flava = backbone == "FLAVA"
        (found,) = [c for c in commands if ("cola/backbones/flava.yaml" in c) == on_flava]
        assert "cola/base.yaml" in found
        (numbers,) = re.findall(rf"^#  {backbone} +(\S+ .*)$", text, re.MULTILINE)
        assert len(numbers.split()) == (3 if row.startswith("fusion/") else 5)


@pytest.mark.parametrize("row", COLA_TYPES)
def test_every_row_of_colas_table_of_training_data_builds_what_it_trains_on(row):
    path = PAPERS / "cola/data/types" / f"{row}.yaml"
    (numbers,) = re.findall(r"^#  CLIP +(\S+ .*)$", path.read_text(), re.MULTILINE)
    assert " ".join(numbers.split()) == COLA_TYPES[row]
    fit, *builds = stated(path)
    assert "configs/experiments/cola/mm_adapter.yaml" in fit
    built = {words[words.index("--out") + 1]: words for words in builds}
    content = yaml.safe_load(path.read_text())
    assert set(built) == {part["path"] for part in content["data"]["train"]}
    assert all("--measured" in words for words in built.values())
    evaluation = content["trainer"]["callbacks"][0]["init_args"]
    assert evaluation["benchmarks"] == "../../benchmarks/types.yaml"


def test_a_folder_of_shards_is_built_by_one_command():
    """Files of one paper share folders: what two headers build there must be the same."""
    for paper in ("cola", "eqsim"):
        built: dict[str, list[str]] = {}
        for path in sorted((PAPERS / paper).rglob("*.yaml")):
            for words in stated(path):
                if words[0] == "build":
                    assert built.setdefault(words[words.index("--out") + 1], words) == words, path


def test_what_stands_in_different_files_of_a_paper_does_not_overlap():
    """So each row goes with each data file: what one sets, the other does not."""
    for paper, rows in {"cola": COLA_ROWS, "eqsim": EQSIM_ROWS}.items():
        folder = PAPERS / paper
        of_rows = {folder / f"{row}.yaml" for row in rows}
        parts = ("data", "backbones", "captions")
        of_data, of_backbones, of_captions = (set((folder / x).rglob("*.yaml")) for x in parts)
        others = {*folder.rglob("benchmarks*.yaml"), *folder.glob("benchmarks/*.yaml")}
        # Change `data.train`, or the loss, of what stands before.
        after = {folder / "cifar10.yaml", folder / "info_nce.yaml"} & {*folder.glob("*.yaml")}
        after -= of_rows
        known = of_rows | of_data | of_backbones | of_captions | others | after
        assert {*folder.rglob("*.yaml")} == known | {folder / "base.yaml"}
        parts = ("adapter", "objectives", "pairs", "store", "store_dtype")
        assert set().union(*map(keys, of_rows)) <= {f"model.{part}" for part in parts}
        set_by_data = {"data.train", "trainer.callbacks", "data.captions"}
        assert set().union(*map(keys, of_data)) <= set_by_data
        assert set().union(*map(keys, of_captions)) <= {"data.captions", "data.batch_size"}
        assert set().union(*map(keys, of_backbones)) <= {"model.backbone", "model.optimizer"}


@pytest.mark.parametrize("path", RECIPES, ids=relative)
def test_a_recipe_is_what_the_command_it_starts_with_takes(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = command(path, ROOT, "build|evaluate")
    if words[0] == "evaluate":
        check_recipe(words)
        return
    options = command_parser().parse_args(words)
    assert (ROOT / options.config) == path
    given = yaml.safe_load(path.read_text())
    made = make(Builder, find("builders", options.corpus), changes(path))
    set_keys = {key for key, value in given.items() if value}  # a spec may leave out zeros
    assert made.spec()["init_args"].keys() >= set_keys


def check_recipe(words: list[str], path: Path | None = None) -> None:
    """Makes the benchmarks or the builder that a command names in the header of `path`."""
    options, rest = command_parser().parse_known_args(words)
    if options.command == "evaluate":
        assert rest == []
        benchmarks = make_benchmarks(options.benchmarks)
        names = [benchmark.name for benchmark in benchmarks]
        assert len(set(names)) == len(names) > 0
        model = Path(options.model)
        if model.suffix == ".ckpt":  # of the run that this file is
            run = yaml.safe_load(path.read_text())["trainer"] if path else {}
            assert model == Path(run["default_root_dir"], "checkpoints/last.ckpt")
            assert run.get("logger") is None  # another logger has its own folder
        else:
            tagged = options.pretrained or options.model.startswith("timm:")
            assert model.exists() if "/" in options.model else tagged
    elif options.command in ("report", "shuffles", "neighbours"):
        assert rest == []
    else:
        make(Builder, find("builders", options.corpus), rest)


def test_each_config_is_of_a_known_kind():
    known = {*PLUGINS, *MODULES, *MODELS, *STATED, *SWEEPS, *SUITES, *SOURCES}
    assert [relative(path) for path in ALL if path not in known] == []


def test_the_index_is_what_the_headers_say():
    assert page() == PAGE.read_text(encoding="utf-8"), "run `python -m scripts.configs_page`"
    assert [relative(path) for path in ALL if not summary(path.read_text())] == []


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("# vlmtune fit --config a\n# As Ray et al.\n# have it. More.\n", "As Ray et al. have it"),
        (f"# PUG: AR4T, pairs: {'many ' * 20}.\n", "PUG: AR4T, pairs"),
        ("a: 1\n# Not a header.\n", ""),
    ],
)
def test_the_index_has_the_first_sentence_of_a_header(header, sentence):
    assert summary(header) == sentence
