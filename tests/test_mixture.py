"""The quickstart's mixture on the rendered world, from its builders to two ranks."""

from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from tests.ranks import run_ranks
from tests.runs import QUIET, Batches, quiet_trainer
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.main import main
from vlmtune.cli.quickstart import SHARDS
from vlmtune.data.collate import collate
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.mixed_pairs import MixedPairs
from vlmtune.report.run_report import RunReport
from vlmtune.training.module import AdaptationModule

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

ROOT = Path(__file__).parents[1]
QUICK = ROOT / "configs/experiments/quickstart"
CLIP = ROOT / "checkpoints/scenes-clip"
SETS = {"queries": "cola", **SHARDS}
TINY = {"train": 16, "val": 0, "test": 40, "multi": 2, "ar4t_train": 8, "ar4t_test": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the configs built a tiny world and its shards."""
    folder = tmp_path_factory.mktemp("scenes")
    counts = [f"--{name}={count}" for name, count in TINY.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "checkpoints").symlink_to(ROOT / "checkpoints")
        world = ["--config", str(QUICK / "world.yaml"), "--out", "runs/quickstart/world", *counts]
        assert main(["build", "scenes", *world, "--benchmarks=2", "--spar_repeats=1"]) == 0
        for name, builder in SETS.items():
            words = ["--config", str(QUICK / f"{name}.yaml"), "--out", f"runs/quickstart/{name}"]
            assert main(["build", builder, *words]) == 0
    return folder


@pytest.mark.parametrize("method", ["grounded_words", "mm_adapter"])
def test_a_method_trains_and_is_measured(method, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    few = yaml.safe_load((QUICK / "benchmarks.yaml").read_text())[:4]
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few))
    config = ["--config", str(QUICK / "grounded_words.yaml"), "--model.adapter", method]
    if method == "mm_adapter":  # its tokens have passed a block
        config += ["--model.adapter.init_args.text_layer=-2"]
    callback = "--trainer.callbacks.BenchmarkCallback"
    words = ["--trainer.max_steps=2", "--data.batch_size=4", "--data.num_workers=0",
             f"{callback}.benchmarks={tmp_path / 'few.yaml'}", f"{callback}.every_n_steps=2",
             f"--trainer.default_root_dir={tmp_path}"]  # fmt: skip
    assert main(["fit", *config, *words]) == 0
    report = RunReport.load(tmp_path / "report.json")
    assert [result.benchmark for result in report.results] == [
        "cola_multi_unseen", "cola_multi_unread", "cola_multi_seen", "wordings",
    ]  # fmt: skip


EVERY = MixedPairs(99, 99, 0)  # all pairs within a group, so that nothing is drawn at random


class Given(PairPolicy):
    """Chosen pairs, batch by batch."""

    def __init__(self, masks):
        self.masks = list(masks)

    def __call__(self, targets, generator, reference=None):
        return self.masks.pop(0)


def of_the_ranks(parts):
    """In the batch of all groups, the pairs that each rank scores in its part of them."""
    whole = collate([group for part in parts for group in part])
    mask, row = torch.zeros_like(whole.targets.truth), 0
    for part in map(collate, parts):
        columns = torch.tensor([whole.texts.index(text) for text in part.texts])
        chosen = EVERY(part.targets, torch.Generator())
        mask[row : row + len(chosen), columns] = chosen
        row += len(chosen)
    return mask


def trained(rank, steps, pairs, folder, **options):
    """The weights after a step on each batch of a rank."""
    torch.manual_seed(0)
    adapter = GroundedWords(heads=2)
    # Not Adam: it takes steps of full size along gradients that are 0 but for rounding.
    made = AdaptationModule(
        OpenClip(str(CLIP)), adapter, [PairBCE()], pairs, partial(torch.optim.SGD, lr=0.1), 0.0
    )
    batches = [collate(parts[rank], made.backbone.preprocess) for parts in steps]
    trainer = quiet_trainer(max_steps=len(batches), default_root_dir=folder, **options)
    trainer.fit(made, Batches(batches), Batches(batches[:1]))
    return {name: value.detach().clone() for name, value in adapter.named_parameters()}


def on_two(rank, steps, folder):
    return trained(rank, steps, EVERY, folder, devices=2, strategy="ddp")


def test_two_ranks_train_like_one(place, tmp_path):
    sets = tuple(ShardSet(str(place / "runs/quickstart" / name)) for name in SETS)
    batches = islice(GroupStream(sets, batch_size=8).batches(), 3)
    steps = [(groups[:5], groups[5:]) for groups, _ in batches]
    whole = [([group for part in parts for group in part],) for parts in steps]
    masks = [*map(of_the_ranks, steps), of_the_ranks(steps[0])]  # the last one for validation
    assert all(mask.sum() > 20 for mask in masks)
    want = trained(0, whole, Given(masks), tmp_path, devices=1)
    torch.manual_seed(0)
    made = GroundedWords(heads=2)
    made.attach(OpenClip(str(CLIP)))
    start = {name: value.detach() for name, value in made.named_parameters()}
    moved = {name: (value - start[name]).abs().max() for name, value in want.items()}
    assert moved["keys_values.weight"] > 1e-4
    for got in run_ranks(2, tmp_path / "ranks", on_two, steps, tmp_path):
        assert got.keys() == want.keys()
        for name, value in want.items():
            assert (got[name] - value).abs().max() < 0.01 * moved[name] + 1e-6, name
