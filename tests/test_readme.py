"""README, CONTRIBUTING and docs/: their tree, commands, code and links are true."""

import gc
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
import webdataset
import yaml
from PIL import Image

from data_builders.shard_builder import Builder
from data_builders.worlds.scenes.requests import render
from tests.runs import QUIET
from tests.test_configs import Parsed, bare
from vlmtune.adapters import MMAdapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli import build
from vlmtune.cli.commands import EPILOG, TRAINING, command_parser
from vlmtune.cli.compare_jobs import read_experiment
from vlmtune.cli.main import main
from vlmtune.cli.option_names import renamed_option, table_options
from vlmtune.cli.plugins import TABLE_SUFFIXES, find, is_table, make, make_benchmarks
from vlmtune.data.shards import read_headers
from vlmtune.export import save_export
from vlmtune.model import load
from vlmtune.search import build_index
from vlmtune.types import Scores, Targets

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "checkpoints/**/", "configs/", "docs/", "docs/results/")
FOUND = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md")]
# Cards of exports are tested by themselves.
WRITTEN = [path for path in FOUND if not (path.parent / "adapter_config.json").exists()]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in WRITTEN)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
FENCE = re.compile(r"(?:<!-- (\w+) -->\n)?^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

__all__ = ["bare"]  # a fixture
pytestmark = QUIET


def blocks(text: str, language: str, mark: str | None = None) -> list[str]:
    """The fenced blocks of a language, those under `<!-- mark -->` where a mark is given."""
    return [
        content
        for marked, written_in, content in FENCE.findall(text)
        if written_in == language and (mark is None or marked == mark)
    ]


def block(name: str, language: str, mark: str | None, part: str) -> str:
    """The one block of a document that holds `part`."""
    (content,) = (content for content in blocks(TEXTS[name], language, mark) if part in content)
    return content


# -- the tree ---------------------------------------------------------------------------------


def entries(paths: list[Path]) -> set[str]:
    """First parts of paths, folders with a slash."""
    return {path.parts[0] + "/" * (len(path.parts) > 1) for path in paths}


def test_the_tree_is_the_repository():
    """Files that are yet to be committed are in it too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git repository")
    paths = [Path(line) for line in done.stdout.splitlines() if (ROOT / line).is_file()]
    lines = block("CONTRIBUTING.md", "text", None, "README.md ").splitlines()
    assert all(re.fullmatch(r"(  )?\S+ {2,}\S.*", line) for line in lines), "name, then a comment"
    names = [line.split()[0] for line in lines]
    assert len(set(names)) == len(names)
    inner = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {*names} - inner == entries(paths)
    package = [path.relative_to("vlmtune") for path in paths if path.parts[0] == "vlmtune"]
    assert inner == entries(package)


# -- commands ---------------------------------------------------------------------------------


def lines_of(text: str) -> list[str]:
    """The commands of a shell block, as they are typed."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def stated(path: Path) -> list[str]:
    """The commands in the comments of a config."""
    lines = (line.removeprefix("#").strip() for line in path.read_text().splitlines())
    return [line for line in lines if re.match(r"(vlmtune|wandb) \w+ .*--", line)]


def documented() -> dict[str, str]:
    """Every command of the documents and of the plug-ins' headers, with the last file it is in.

    `tests/test_configs.py` parses the commands in the headers of experiments.
    """
    listed = {}
    for name, text in TEXTS.items():
        for content in blocks(text, "sh"):
            listed |= dict.fromkeys(lines_of(content), name)
    examples = [line for line in EPILOG.splitlines() if line.startswith("  vlmtune ")]
    listed |= dict.fromkeys(examples, "vlmtune --help")
    for path in sorted(ROOT.glob("configs/**/*.yaml")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("configs/experiments/"):
            listed |= dict.fromkeys(stated(path), name)
    return listed


class Command(Parsed):
    """Parses a training command whose checkpoint need not be there."""

    def _parse_ckpt_path(self) -> None: ...


def check_vlmtune(words: list[str]) -> None:
    """Has a command of ours parsed as far as it can be without data."""
    if words[0] in TRAINING:
        # As `main` names the options of Lightning.
        command, *given = [renamed_option(word, "-", "_") for word in words]
        Command(command, given)
        return
    assert not {"ViT-B-32", "openai"} <= {*words}, "OpenAI's weights need ViT-B-32-quickgelu"
    of_table, words = table_options(words)
    options, rest = command_parser().parse_known_args(words)
    assert not of_table or any(map(is_table, options.benchmarks))
    if options.command == "build":
        source = find("builders", options.corpus)
        make(Builder, source, build.arguments(source, options.config, rest))
        return
    assert rest == []
    if options.command == "compare":
        assert read_experiment(options.experiment)
    if options.command == "evaluate":
        shipped = [name for name in options.benchmarks if not name.endswith(TABLE_SUFFIXES)]
        assert len(make_benchmarks(shipped)) >= len(shipped)


QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
EXPANDED = re.compile(r"\[.*\]|\{.*\}")  # by a shell: names of files, or several words


def check(line: str) -> None:
    """Fails unless a command of the documents can be run."""
    assert not EXPANDED.search(QUOTED.sub("", line)), "quote what a shell takes for a pattern"
    words = shlex.split(line, comments=True)
    program = words[0]
    if program == "vlmtune":
        check_vlmtune(words[1:])
    elif program == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[:2] == ["python", "-m"]:
        module = find_spec(words[2])
        if module is not None and module.origin is None:  # a package runs by its __main__
            module = find_spec(f"{words[2]}.__main__")
        assert module
        assert module.origin
        source = Path(module.origin).read_text()
        options = [word.removeprefix("--") for word in words if word.startswith("--")]
        assert all(f'"{option}"' in source or f'"--{option}"' in source for option in options)
    elif program == "pip":
        assert words == ["pip", "install", "."]
    else:
        assert words[:2] == ["wandb", "sweep"], f"no way to check {words}"
        assert (ROOT / words[-1]).is_file()


def test_a_shell_expands_no_command_of_a_header():
    for path in sorted(ROOT.glob("configs/**/*.yaml")):
        assert not [x for x in stated(path) if EXPANDED.search(QUOTED.sub("", x))], path


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("line", "place"), documented().items(), ids=lambda text: text[:60])
def test_a_documented_command_is_one(line, place, at_root, bare, monkeypatch):
    if line.split()[1] in TRAINING and ".benchmarks." not in line:
        monkeypatch.chdir(bare)
    check(line)


@pytest.mark.parametrize(
    "line",
    [
        "vlmtune evaluate --model x --benchmark cola_multi --out y",
        "vlmtune build coco --split '[train]' --out x",
        "vlmtune build coco --splits [train] --out x",
        "vlmtune fit --config configs/experiments/quickstart/mm_adapter.yaml --model.optimiser lr",
        "vlmtune evaluat --model x",
        "make everything",
        "python train.py",
    ],
)
def test_a_wrong_command_is_found(line, at_root):
    with pytest.raises((Exception, SystemExit)):
        check(line)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_subcommands_named_in_the_text_exist(name):
    text = TEXTS[name]
    named = set(" ".join(re.findall(r"`vlmtune ([a-z| ]+)(?![\w/.])", text)).split())
    choices = command_parser()._subparsers._group_actions[0].choices
    corpora = {path.stem for path in (ROOT / "configs/plugins/builders").glob("*.yaml")}
    sources = {path.stem for path in (ROOT / "configs/sources").glob("*.yaml")}
    sources |= {name.removeprefix("weights_") for name in sources}
    assert named - {"|"} <= choices.keys() | corpora | sources


# -- code -------------------------------------------------------------------------------------


SMALL = {  # what a test cannot wait for
    "batch_size=256": "batch_size=4",
    "max_epochs=20": "max_steps=1, accelerator='cpu', logger=False, enable_progress_bar=False",
}


def execute(code: str) -> dict:
    """Runs Python; returns its names."""
    names: dict = {}
    exec(compile(code, "<document>", "exec"), names)
    return names


def run_block(name: str, mark: str, **replaced: str) -> dict:
    """Runs the one marked block of a page, some of its words replaced; returns its names."""
    (code,) = blocks(TEXTS[name], "python", mark)
    for long, short in (SMALL | replaced).items():
        code = code.replace(long, short)
    return execute(code)


def export(folder: Path) -> None:
    """Writes an untrained MM-Adapter over the shipped CLIP."""
    backbone, adapter = OpenClip("local-dir:checkpoints/scenes-clip"), MMAdapter()
    adapter.attach(backbone)
    save_export(folder, backbone, adapter, provenance={})


@pytest.mark.parametrize("name", ["README.md", "docs/retrieve.md"])
def test_an_export_is_used_as_documented(name, tmp_path, monkeypatch):
    code = blocks(TEXTS[name], "python", "runs")
    (folder,) = set(re.findall(r'vlmtune\.load\("(.+)"\)', "".join(code)))
    export(tmp_path / folder)
    for image in ("image.png", "a.png", "b.png"):
        Image.new("RGB", (9, 9), "red").save(tmp_path / image)
    monkeypatch.chdir(tmp_path)
    assert len([line for line in code[0].splitlines() if line]) == 3
    assert execute(code[0])["scores"].shape == (1, 2)
    for further in code[1:]:
        assert execute(further)["position"] in (0, 1)


def test_an_index_is_searched_as_documented(tmp_path, monkeypatch):
    export(tmp_path / "export")
    Image.new("RGB", (9, 9), "red").save(tmp_path / "a.png")
    model = load(tmp_path / "export", device="cpu")
    build_index([tmp_path / "a.png"], model, tmp_path / "runs/index", tmp_path / "export")
    monkeypatch.chdir(tmp_path)
    assert run_block("docs/retrieve.md", "index")["path"] == tmp_path / "a.png"


def test_the_objective_of_the_documents_works():
    """`test_extension` trains their adapter."""
    (code,) = blocks(TEXTS["docs/extend.md"], "python", "margin")
    module = ModuleType("vlmtune.objectives.margin")
    # It stays: a later test lists the subclasses of objectives, and imports the modules they name.
    sys.modules[module.__name__] = module
    exec(compile(code, "margin.py", "exec"), module.__dict__)
    scores = Scores.full(torch.tensor([[2.0, 1.5], [0.0, 3.0]]))
    assert module.Margin()(scores, Targets.diagonal(2)) == 0.25  # of (1 - 2 + 1.5) and 0


def test_the_benchmark_of_the_documents_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (code,) = blocks(TEXTS["docs/extend.md"], "python", "benchmark")
    Path("pictures.py").write_text(code)
    Path("pictures.yaml").write_text("class_path: pictures.Pictures\ninit_args: {path: mine.json}")
    Image.new("RGB", (9, 9)).save("a.png")
    row = {"image": "a.png", "true": "a red cube", "false": "a blue cube"}
    Path("mine.json").write_text(json.dumps([row]))
    words = ["evaluate", "--model", "checkpoints/scenes-clip", "--benchmarks", "pictures.yaml"]
    assert main([*words, "--out", "report"]) == 0, capsys.readouterr().err
    (result,) = json.loads(Path("report/report.json").read_text())["results"]
    assert result["benchmark"] == "pictures"
    assert result["metrics"]["accuracy"]["n"] == 1
    # What a class lacks is named.
    Path("pictures.yaml").write_text("class_path: vlmtune.benchmarks.MultipleChoice")
    assert main([*words, "--out", "report"]) == 2
    assert capsys.readouterr().err.endswith("MultipleChoice is abstract: define read\n")


def test_the_backbone_of_the_documents_is_measured_and_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (code,) = blocks(TEXTS["docs/extend.md"], "python", "backbone")
    Path("own_clip.py").write_text(code)
    Path("own_clip.yaml").write_text("class_path: own_clip.OwnCLIP\ninit_args: {weights: own.pt}")
    torch.save(importlib.import_module("own_clip").Network().state_dict(), "own.pt")
    for side in (9, 5):
        Image.new("RGB", (side, 9)).save(f"{side}.png")
    Path("mine.csv").write_text("image,caption\n9.png,a dog\n5.png,a long caption\n")
    Path("items.csv").write_text("image,caption,negative\n9.png,a dog,no dog\n")
    evaluate = ["evaluate", "--model", "own_clip.yaml", "--benchmarks", "items.csv"]
    assert main([*evaluate, "--out", "report"]) == 0, capsys.readouterr().err
    fit = ["fit", "--config", "configs/experiments/own_data/mm_adapter.yaml", "--data", "mine.csv"]
    fit += ["--model.backbone", "own_clip.yaml", "--model.adapter.init_args.image_layer", "-1"]
    fit += ["--model.adapter.init_args.text_layer", "-1"]
    fit += ["--data.batch_size", "2", "--trainer.max_steps", "1"]
    assert main(fit) == 0, capsys.readouterr().err
    assert "MMAdapter on OwnCLIP" in capsys.readouterr().err


def test_the_corpus_of_the_documents_is_built(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(TEXTS["docs/extend.md"], "python", "corpus")
    Path("listed.py").write_text(code)
    Path("listed.yaml").write_text("class_path: listed.Listed")
    Image.new("RGB", (9, 9)).save("a.png")
    Path("mine.json").write_text(json.dumps([{"image": "a.png", "captions": ["a", "b"]}]))
    words = ["build", "listed.yaml", "--path", "mine.json", "--out", "shards"]
    assert main(words) == 2
    assert "listed.py lies here, so put PYTHONPATH=. before the command" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(words) == 0, capsys.readouterr().err
    assert "shards: 1 shard, 1 record\n" in capsys.readouterr().out


def test_an_adapter_trains_in_the_loop_of_the_documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_block("docs/python.md", "loop")
    loaded = load("exports/mine", device="cpu")
    assert loaded.score(names["images"], names["texts"]).equal(names["scores"])
    assert names["loss"] < 0.6


def test_an_objective_and_a_metric_work_alone_as_documented(capsys):
    assert run_block("docs/python.md", "objective")["loss"].isfinite()
    assert 0 <= float(run_block("docs/python.md", "metric")["accuracy"].compute()) <= 1
    assert "chance=0.01" in capsys.readouterr().out


def test_a_function_is_measured_as_documented(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for side in (9, 5):
        Image.new("RGB", (side, 9)).save(f"{side}.png")
    Path("mine.csv").write_text("image,caption\n9.png,a dog\n5.png,a long caption\n")
    assert (
        run_block("docs/python.md", "function")["result"].metrics["text_to_image_recall@1"].n == 2
    )
    assert "text_to_image_recall@1" in capsys.readouterr().out


def test_the_modules_of_the_documents_train(model_folder, shards, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine-shards").symlink_to(shards)
    monkeypatch.chdir(tmp_path)
    pretrained = '"ViT-B-32-quickgelu", "openai"'
    names = run_block("docs/python.md", "module", **{pretrained: repr(str(model_folder))})
    assert type(names["module"].adapter).__name__ == "LoRA"
    assert names["module"].global_step == 1
    assert (tmp_path / "runs/features").is_dir()


def test_a_module_of_the_user_logs_the_metrics():
    module, logged = run_block("docs/measure.md", "metrics")["MyModule"](), {}
    module.log = logged.__setitem__
    module.validation_step(torch.eye(2)[None], 0)
    assert float(logged["winoground/group_accuracy"].compute()) == 1.0


def test_the_scene_requests_render(capsys):
    run_block("docs/corpora.md", "scenes")
    assert capsys.readouterr().out.count("(64, 64) ['cube'") == 3
    requests = [json.loads(x) for x in blocks(TEXTS["docs/corpora.md"], "json") if "objects" in x]
    assert [len(list(render(request, size=16))) for request in requests] == [1, 60]


def test_the_words_of_a_benchmark_file_are_counted_as_documented(tmp_path, monkeypatch):
    file = tmp_path / "data/cola-attributes/COLA_singleobjects_benchmark.json"
    file.parent.mkdir(parents=True)
    labels = [[["old", "white"], "plate"], [["old"], "car"], [["red"], "car"]]
    file.write_text(json.dumps({"labels": labels, "data": []}))
    monkeypatch.chdir(tmp_path)
    names = run_block("docs/corpora.md", "words")
    assert names["attributes"] == {"old": 2, "white": 1, "red": 1}
    assert names["objects"] == {"car": 2, "plate": 1}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves them open
def test_webdataset_reads_our_shards_and_writes_for_us(shards, tmp_path, monkeypatch, capsys):
    (tmp_path / "shards").symlink_to(shards)
    monkeypatch.chdir(tmp_path)
    run_block("docs/formats.md", "webdataset")
    assert capsys.readouterr().out.count("(8, 8) ['a ") == 24
    Path("theirs").mkdir()
    with webdataset.TarWriter("theirs/data-000000.tar") as tar:
        tar.write({"__key__": "7", "jpg": Image.new("RGB", (9, 9)), "txt": "a red cube"})
    data = run_block("docs/formats.md", "pipeline")["data"]
    ((_, group, _),) = read_headers(data.sets["train"])
    assert group.texts == ("a red cube", "a blue cube")
    gc.collect()


def test_no_python_is_left_unchecked():
    written = [found for text in TEXTS.values() for found in FENCE.findall(text)]
    marks = Counter(mark for mark, language, _ in written if language == "python")
    once = "adapter backbone benchmark corpus function hub index loop margin metric metrics module"
    once += " objective onnx open_clip peft"
    once += " pictures pipeline scenes webdataset sentence_transformers transformers words"
    assert marks == {**dict.fromkeys(once.split(), 1), "journey": 4, "runs": 3}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_yaml_and_json_of_the_documents_parse_and_no_number_is_left_to_fill_in(name):
    for content in blocks(TEXTS[name], "yaml"):
        assert yaml.safe_load(content)
    for content in blocks(TEXTS[name], "json"):
        assert json.loads(content)
    assert re.findall(r"@\w+@", TEXTS[name]) == []


# -- the rest ---------------------------------------------------------------------------------


def slug(title: str) -> str:
    """The anchor of a heading: "What failed" is what-failed."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        # `make docs` checks the links to api/.
        if "://" in link or link.startswith("api/"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, titles), link
