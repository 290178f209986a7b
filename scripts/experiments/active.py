"""Active choice of the scenes to train on, against a random choice at equal cost.

PUG's future work (Bordes et al. 2023, section 6): the simulator renders next what the model gets
wrong. In: seeds, and the world of `vlmtune quickstart` to measure on. Out: accuracies by round and
arm, with what each arm cost. Never: a test scene or a held-out composition in training.

Both arms start from the same trained adapter. In each round candidates are rendered: groups of two
scenes with a minimal change (colours, an attribute, a relation, a count). Each arm scores all with
its present adapter, keeps as many as the other, and trains for as many steps. The active arm keeps
candidates that its adapter gets wrong, the uniform arm any of them. Both see the same candidates,
so each is rendered once here and counted for both.

    python -m scripts.experiments.active --out runs/active --seeds 0 1 2

`--start` is the checkpoint of each {seed}. A round scores `--candidates`, keeps `--kept` and trains
for `--steps` at the learning rate `--rate`, beside `--captions` scenes with captions.
"""

import argparse
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from data_builders.worlds.scenes.rendered import Kind, RenderedScenes
from scripts.bench import harness
from scripts.experiments.rounds import Row, plot, table
from tests.runs import quiet_trainer
from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.plugins import make, make_list
from vlmtune.cli.yaml_files import read_yaml
from vlmtune.config import ROOT, instantiate
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.rendered import RenderedSet
from vlmtune.data.shards import ShardSet
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import run_suite
from vlmtune.model.loading import read_checkpoint
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.module import AdaptationModule
from vlmtune.types import Group

QUICKSTART = ROOT / "configs/experiments/quickstart"
BENCHMARKS = ROOT / "configs/experiments/active/benchmarks.yaml"
ARMS = ("active", "uniform")
CHANGES: tuple[Kind, ...] = ("cola", "ar4t", "location", "counting", "attribute")
START = "runs/quickstart/seed-{seed}/grounded-words/checkpoints/last.ckpt"
BATCH = 24  # groups
REPORTED = {
    "two objects, unseen": ("cola_multi_unseen", "accuracy"),
    "AR4T, relations": ("pug_ar4t", "group_accuracy/relations"),
    "AR4T, attributes": ("pug_ar4t", "group_accuracy/attributes"),
    "counting": ("eqben", "group_accuracy/eqbenkubric_cnt"),
    "classification": ("zero_shot", "accuracy"),
}


class Pool(RenderedSet):
    """Groups in memory, `members`, in another order in each epoch.

    Args:
        records: How many there are.
        weight: How often training sees a group, relative to a set of weight 1.
        seed: Seed of the orders.
    """

    members: Sequence[Group]

    def __init__(self, records: int, weight: float = 1.0, seed: int = 0) -> None:
        super().__init__(records, weight)
        self.seed = seed

    @classmethod
    def of(cls, members: Sequence[Group], weight: float, seed: int) -> "Pool":
        """A pool of groups."""
        pool = cls(len(members), weight, seed)
        pool.members = tuple(members)
        return pool

    @override
    def groups(self, epoch: int, start: int, count: int) -> Sequence[Group]:
        order = list(range(len(self.members)))
        random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return [self.members[order[i % len(order)]] for i in range(start, start + count)]


@dataclass
class Cost:
    """What an arm has used.

    Attributes:
        rendered: Images.
        scored: Pairs of an image and a text of candidates.
        kept: Groups that training may draw.
        steps: Optimizer steps of `BATCH` groups.
    """

    rendered: int = 0
    scored: int = 0
    kept: int = 0
    steps: int = 0


def is_wrong(scores: Float[Tensor, "k m"], truth: Bool[Tensor, "k m"]) -> bool:
    """Whether a false pair of a group scores as high as a true one of its image or of its text.

    Example:
        >>> truth = torch.eye(2) > 0
        >>> is_wrong(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), truth)
        False
        >>> is_wrong(torch.tensor([[0.9, 0.1], [0.9, 0.8]]), truth)
        True
    """
    high, low = scores.new_tensor(float("inf")), scores.new_tensor(float("-inf"))
    true, false = scores.where(truth, high), scores.where(~truth, low)
    return any(bool((true.amin(k) <= false.amax(k)).any()) for k in (0, 1))


def kept(
    wrong: Sequence[bool], count: int, active: bool, rng: random.Random
) -> tuple[list[int], int]:
    """Which candidates an arm keeps, and how many of them are wrong.

    Random ones; in the active arm wrong ones first.

    Example:
        >>> kept([False, True, False, True], 2, True, random.Random(0))
        ([1, 3], 2)
    """
    order = rng.sample(range(len(wrong)), len(wrong))
    if active:
        order.sort(key=lambda i: not wrong[i])
    chosen = sorted(order[:count])
    return chosen, sum(wrong[i] for i in chosen)


def candidates(seed: int, number: int, count: int, kinds: Sequence[Kind]) -> list[Group]:
    """The groups of a round, the same for both arms: `count`, divided among the kinds."""
    world = read_yaml(QUICKSTART / "world.yaml")
    names = ("min_objects", "max_objects", "textures", "sizes", "unseen")
    options: dict[str, Any] = {name: world[name] for name in names}
    each = count // len(kinds)
    groups: list[Group] = []
    for kind in kinds:
        scenes = RenderedScenes(each, kind, seed=1000 + seed, **options)
        groups += scenes.groups(number, 0, each)
    return groups


def score_all(scorer: Scorer, groups: Sequence[Group]) -> list[Tensor]:
    """The scores of each group's images and texts."""
    images: list[Any] = []
    texts: list[str] = []
    pairs: list[tuple[int, int]] = []
    for group in groups:
        k, m = group.truth.shape
        rows, columns = range(len(images), len(images) + k), range(len(texts), len(texts) + m)
        pairs += product(rows, columns)
        images += group.images or ()
        texts += group.texts
    scores = scorer(images, texts, torch.tensor(pairs))
    sizes = [group.truth.numel() for group in groups]
    parts = zip(scores.split(sizes), groups, strict=True)
    return [part.reshape(group.truth.shape) for part, group in parts]


class Arm:
    """An adapter with the groups that were kept for it."""

    def __init__(self, name: str, seed: int, captions: Sequence[Group], rate: float) -> None:
        model = read_yaml(QUICKSTART / "grounded_words.yaml")["model"]
        backbone = make(Backbone, str(QUICKSTART / model["backbone"]))  # type: ignore[type-abstract]
        adapter = instantiate(model["adapter"], Adapter)  # type: ignore[type-abstract]
        self.module = AdaptationModule(
            backbone,
            adapter,
            [PairBCE()],
            instantiate(model["pairs"], PairPolicy),  # type: ignore[type-abstract]
            partial(torch.optim.AdamW, lr=rate, weight_decay=0.1),
            warmup=0.1,
            final_lr=0.1,
            seed=seed,
        )
        self.name, self.seed, self.captions = name, seed, captions
        self.pool: list[Group] = []
        self.cost = Cost()

    def take(self, groups: Sequence[Group], count: int, number: int) -> dict[str, Any]:
        """Scores candidates and keeps some; returns how many were wrong, and of the kept ones."""
        scores = score_all(Scorer(self.module.backbone, self.module.adapter), groups)
        wrong = [is_wrong(s, g.truth) for s, g in zip(scores, groups, strict=True)]
        rng = random.Random(f"{self.seed}:{number}:{self.name}")
        chosen, failed = kept(wrong, count, self.name == "active", rng)
        self.pool += [groups[i] for i in chosen]
        self.cost.rendered += sum(len(group.image_ids) for group in groups)
        self.cost.scored += sum(group.truth.numel() for group in groups)
        self.cost.kept += len(chosen)
        kinds = Counter(g.key.split("_")[0] for g, w in zip(groups, wrong, strict=True) if w)
        return {
            "candidates": len(groups),
            "wrong": sum(wrong),
            "wrong by kind": dict(sorted(kinds.items())),
            "kept": len(chosen),
            "kept wrong": failed,
        }

    def train(self, steps: int, number: int) -> None:
        """Trains on all kept groups and, in one of four draws, on captions."""
        weight = len(self.pool) / (3 * len(self.captions))
        sets: list[ShardSet] = [
            Pool.of(self.pool, 1.0, self.seed),
            Pool.of(self.captions, weight, self.seed),
        ]
        data = ShardDataModule(
            sets, BATCH, seed=100 * self.seed + number, epoch_groups=steps * BATCH
        )
        where: dict[str, Any] = {"accelerator": "auto", "devices": 1}
        trainer = quiet_trainer(max_steps=steps, gradient_clip_val=1.0, **where)
        trainer.fit(self.module, datamodule=data)
        self.cost.steps += steps

    def measure(self, benchmarks: Sequence[Benchmark], store: Path) -> dict[str, float]:
        """The reported numbers; frozen features of test images come from the store."""
        scorer = Scorer(self.module.backbone, self.module.adapter, store)
        results = {result.benchmark: result for result in run_suite(benchmarks, scorer).results}
        where = REPORTED.items()
        return {name: results[x].metrics[metric].value for name, (x, metric) in where}


def run(seed: int, options: argparse.Namespace) -> list[Row]:
    """Both arms of a seed: a row for each arm and round."""
    benchmarks = make_list(Benchmark, "benchmarks", [str(options.benchmarks)])  # type: ignore[type-abstract]
    captions = candidates(seed, 0, options.captions, ["captions"])
    start = read_checkpoint(str(options.start).format(seed=seed))
    arms = [Arm(name, seed, captions, options.rate) for name in ARMS]
    for arm in arms:
        arm.module.load_state_dict(trained_state(start.backbone, start.adapter))
    rows = []
    for number in range(options.rounds + 1):  # 0 is the start
        clock = time.process_time()
        groups = candidates(seed, number, options.candidates, CHANGES) if number else []
        taken, measured = {}, {}
        for arm in arms:
            if number:
                taken = arm.take(groups, options.kept, number)
                arm.train(options.steps, number)
            if number or arm is arms[0]:  # both start from the same weights
                measured = arm.measure(benchmarks, options.out / "features")
            rows.append({"seed": seed, "arm": arm.name, "round": number, **taken, **measured})
            numbers = ", ".join(f"{name} {100 * measured[name]:.1f}" for name in REPORTED)
            print(f"seed {seed} round {number} {arm.name:<8} {taken} {numbers}", flush=True)
        costs = [asdict(arm.cost) for arm in arms]
        assert costs[0] == costs[1], f"the arms differ in cost: {costs}"
        rows[-1]["cost"] = rows[-2]["cost"] = costs[0]
        print(f"  each arm so far: {costs[0]}; {time.process_time() - clock:.0f} s", flush=True)
    return rows


def main() -> None:
    """Runs all seeds; writes `rounds.json` after each, then `rounds.png`, and prints the table."""
    sizes = {"rounds": 3, "candidates": 300, "kept": 75, "captions": 100, "steps": 30}
    paths = {"out": Path("runs/active"), "start": START, "benchmarks": BENCHMARKS}
    options = harness.options(__doc__, **paths, seeds=[0, 1, 2], **sizes, rate=3e-4)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    harness.hide_warnings()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in options.seeds:
        rows += run(seed, options)
        (options.out / "rounds.json").write_text(json.dumps(rows, indent=1))
    plot(rows, ARMS, list(REPORTED), options.out / "rounds.png")
    print(table(rows, ARMS, list(REPORTED)))


if __name__ == "__main__":
    main()
