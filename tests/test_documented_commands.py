"""Every command of the documentation runs, in the order of its page, on a tiny world.

Each page starts in a folder in which `vlmtune quickstart` has run and in which pictures, tables and
files of the reader lie where the page has them. What is not run is in `UNRUN`, with the reason;
`test_readme` parses those too. docs/own-data.md and docs/examples.md have tests of their own.
"""

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from tests.runs import QUIET
from tests.test_examples import PAGE as EXAMPLES
from tests.test_own_data import PAGE as OWN_DATA
from tests.test_own_data import SCRIPT
from tests.test_readme import FENCE, TEXTS, blocks
from vlmtune.cli import quickstart
from vlmtune.cli.main import main

pytestmark = QUIET
WORLD = quickstart.SIZES["tiny"]["world"]
QUICKSTART = ["quickstart", "--size", "tiny"]
SHOWN = "shown.txt"  # what the quickstart printed, in its folder
LEAST = 8  # scenes of a kind, where a page names their number
# What follows a command to make it small, by its first words.
FIT = "max_steps=2 accelerator=cpu devices=1 logger=false"
TINY: Mapping[str, Sequence[str]] = {
    "fit": ["--data.batch_size=8", *(f"--trainer.{option}" for option in FIT.split())],
    "probe": ["--limit=6", "--steps=2", "--runs=2", "--widths", "0", "--side=32"],
}
# Weights that are not here, and the random ones that stand for them.
OPENAI = "--model ViT-B-32-quickgelu --pretrained openai"
OPENAI_OF_COLA = "--config configs/experiments/cola/base.yaml"
PUBLISHED = "--model negclip.pth --architecture ViT-B-32-quickgelu"
RANDOM = "--model negclip.pth --architecture Tiny-VL-quickgelu"
RANDOM_OF_COLA = (
    f"{OPENAI_OF_COLA} --model.backbone.init_args.model=checkpoints/scenes-clip"
    " --model.backbone.init_args.pretrained=null"
)
# A part of a command or the name of a page, and why it is not run.
UNRUN = {
    "vlmtune quickstart": "has run where each page starts",
    "--format onnx": "torch cannot export what checks shapes; test_to_onnx runs it without",
    "pip install": "installs; test_wheel does",
    "wandb sweep": "needs an account; test_sweep runs its trials",
    "vlmtune report runs/sweeps/": "needs the trials of a sweep",
    "python -m scripts.": "measures for minutes, or asks a language model",
    "python -m tests.faults.": "kills and damages for minutes",
    "docs/cluster.md": "needs GPUs, nodes, Slurm, W&B agents or a bucket",
    "docs/compare.md": "half an hour; test_compare runs a tiny comparison",
    "docs/fusion.md": "needs weights of BLIP; test_fusion_styles trains tiny ones",
    "configs/experiments/eqsim/data/flickr30k.yaml": "needs Flickr30K",
    "build eqben_": "needs videos; tests/data_builders/corpora/test_frame_pairs.py encodes some",
    "data/scenes/eqben": "needs --eqben-train; tests/data_builders/worlds/scenes builds one",
    "vlmtune download": "needs the network; tests/sources runs it against a mirror",
    "exports/peft": "needs a model of transformers; test_to_peft exports one",
    "published:": "needs what the command before it downloads",
    "--benchmarks sugar_crepe aro": "needs what the command before it downloads",
    "timm:": "needs weights of timm; test_timm_image writes some",
    "configs/plugins/models/": "needs weights; test_families writes tiny ones",
    "--data.mined.cache FOLDER": "FOLDER is what the command before it prints",
    "--packages mypackage": "the reader's package; test_extension writes one",
}
ABSENT = {
    "other pages have commands of each kind": "docs/experiments.md",
    "needs a corpus": "data/pug PUG_ANIMAL shards/animals data/visual_genome data/gqa data/paco"
    " data/clevr/ eqben-youcook2",
    "needs weights": "ViT-L-14 ViT-B-32-quickgelu:openai align-base runs/families/",
}
UNRUN |= {f"vlmtune build {name}": "needs a corpus" for name in ("flickr30k", "coco")}
UNRUN |= {part: reason for reason, parts in ABSENT.items() for part in parts.split()}
RESULTS = (
    "cola earlier_methods earlier_quickstart earlier_training heads held_out losses "
    "methods renderer transfer vectors words"
)
UNRUN |= {f"docs/results/{page}.md": "as docs/experiments.md" for page in RESULTS.split()}
ELSEWHERE = {"docs/examples.md": EXAMPLES, "docs/own-data.md": OWN_DATA}


def commands(name: str) -> list[str]:
    """The commands in all shell blocks of a page, one a line."""
    lines = []
    for _, language, content in FENCE.findall(TEXTS[name]):
        if language in ("sh", "bash", "console"):
            lines += re.sub(r"\\\n\s*", "", content).splitlines()
    return [line.strip() for line in lines if line.strip()]


SKIPPED = re.compile("|".join(map(re.escape, UNRUN)))


def run_here(name: str) -> list[str]:
    """The commands of a page that are run."""
    if name in UNRUN:
        return []
    return [line for line in commands(name) if not SKIPPED.search(line)]


PAGES = [name for name in TEXTS if name not in ELSEWHERE and run_here(name)]


def test_each_reason_not_to_run_a_command_is_needed():
    listed = [(name, line) for name in TEXTS for line in commands(name)]
    for part in UNRUN:
        assert any(part == name or part in line for name, line in listed), part


def test_the_pages_that_a_newcomer_reads_are_run():
    assert {"README.md", "docs/train.md", "docs/retrieve.md", "docs/measure.md"} <= {*PAGES}
    assert all(TEXTS[name] == text for name, text in ELSEWHERE.items())


def tiny(line: str) -> list[str]:
    """The words of a command, made small."""
    line = line.replace(OPENAI, RANDOM).replace(PUBLISHED, RANDOM)
    line = line.replace(OPENAI_OF_COLA, RANDOM_OF_COLA)
    program, *words = shlex.split(line)
    assert program == "vlmtune", f"no way to run {line}"
    if words[:2] == ["build", "scenes"]:
        given = [str(min(int(word), LEAST)) if word.isdecimal() else word for word in words]
        return [*given, *(f"--{name}={n}" for name, n in WORLD.items() if f"--{name}" not in words)]
    return [*words, *TINY.get(words[0], ())]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny quickstart and the files of a reader."""
    folder = tmp_path_factory.mktemp("documented")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(quickstart, "cores", lambda: 2)
        with Path(SHOWN).open("w") as file, redirect_stdout(file), redirect_stderr(file):
            status = main(QUICKSTART)
        assert status == 0, Path(SHOWN).read_text()
        exec(compile(SCRIPT, "own-data.md", "exec"), {})
        write_own_files()
        write_cola(Path("runs/quickstart/world"))
    return folder


def write_own_files() -> None:
    mine = Path("data/mine")
    mine.mkdir(parents=True)
    shutil.copytree("photos", mine / "photos")
    shutil.copy("mine.csv", mine / "train.csv")
    for name in ("image.png", "more/image.png", "a.png", "b.png"):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy("photos/000.png", name)
    theirs = "benchmark,id,right\ncola_multi_seen,cola_multi_seen/0,true\n"
    Path("theirs.csv").write_text(theirs)
    (request,) = (x for x in blocks(TEXTS["docs/corpora.md"], "json") if '"relation"' in x)
    Path("data/requests.json").write_text(request)
    Path("data/coco").mkdir()
    captioned = [{"image": "a.jpg", "caption": ["a red dog runs on a green field"]}]
    Path("data/coco/coco_karpathy_test.json").write_text(json.dumps(captioned))


def write_cola(world: Path) -> None:
    """The world's pairs and queries where Cola's files are."""
    cola = Path("data/cola")
    shutil.copytree(world / "images/cola", cola / "vg_gqa_images")
    shutil.copytree(world / "images/test", cola / "vg_gqa_images/test")
    matching, single = "multiobjects_matching_benchmark", "singleobjects_benchmark_GQA"
    shutil.copy(world / "cola/multi_unseen.json", cola / f"COLA_{matching}.json")
    shutil.copy(world / "cola/single.json", cola / f"COLA_{single}.json")


# What a reader of a page has done before: trained weights that can be interpolated, built a world.
LAST_BLOCKS = "--model.adapter last_blocks --model.objectives [info_nce]"
FINE_TUNED = (
    "vlmtune fit --config configs/experiments/quickstart/mm_adapter.yaml"
    f" {LAST_BLOCKS} --trainer.default_root_dir runs/mine"
)
BEFORE = {
    "docs/retrieve.md": [FINE_TUNED],
    "docs/corpora.md": ["vlmtune build scenes --out data/scenes"],
}


@pytest.fixture
def folder(place, tmp_path, monkeypatch) -> Path:
    """A copy of the place to work in."""
    copy = tmp_path / "page"
    shutil.copytree(place, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.slow
def test_the_quickstart_runs_from_end_to_end_and_again(folder, monkeypatch, capsys):
    out = Path(quickstart.OUT)
    assert {path.name for path in out.iterdir()} == {
        *("configs", "world", "queries", "relations", "ar4t", "captions", "foils", "grammar"),
        *("features", "zero-shot", "seed-0", "export", "report", "recipe.log"),
    }
    for name in ("mm-adapter", "grounded-words"):
        files = {path.name for path in (out / "seed-0" / name / "checkpoints").iterdir()}
        assert files == {"last.ckpt"}
    shown = Path(SHOWN).read_text()
    assert "Storing state" in shown  # for grounded words
    assert "training grounded words" in shown
    assert "Storing tokens" in (out / "recipe.log").read_text()  # for the MM-Adapter
    table = (out / "report/report.md").read_text()
    for name in ("CLIP, zero-shot", "MM-Adapter, Cola's recipe", "grounded words, mixture"):
        assert f"| {name} |" in table
    for name in ("text-only (n-gram)", "text-only (image averaged)"):
        assert f"| {name} |" in table

    # The image that is scored is the first item's, with its two captions.
    first = json.loads((out / "world/cola/multi_unseen.json").read_text())[0]
    plan = quickstart.steps(out, out / "configs", 0)
    (score,) = (call for _, call in plan.mixture if call[0] == "score")
    assert Path(score[2]).name == first[0]
    assert [score[4], score[6]] == [first[1], first[3]]

    monkeypatch.setattr(quickstart, "cores", lambda: 2)
    assert main(QUICKSTART) == 0, capsys.readouterr().err
    again = capsys.readouterr().err
    assert again.count("already contains this build; reusing it") == 7
    assert "Storing " not in again + (out / "recipe.log").read_text()  # features are there


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run(name, folder, tiny_vl, capsys):
    torch.save(tiny_vl, folder / "negclip.pth")
    for line in [*BEFORE.get(name, ()), *run_here(name)]:
        assert main(tiny(line)) == 0, f"{line}\n{capsys.readouterr().err}"
