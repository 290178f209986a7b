"""Every rank makes the same collectives, whatever its batch holds: NCCL would hang otherwise."""

import shutil
import signal
import traceback
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.adapters.families import backbone
from tests.collectives import Collectives, difference
from tests.data.conftest import spoil
from tests.ranks import run_ranks
from tests.runs import QUIET, fit, plugin_of, weights
from tests.runs import module as module_of
from tests.tiny import write_cola
from tests.toy import groups
from tests.training.test_damaged_records import keys_of
from tests.training.test_damaged_records import train as train_damaged
from tests.training.test_process_group import broken, steep, trained
from tests.training.test_signals import stops
from vlmtune.adapters import Adapter, FullFineTuning, FusionTuning, LinearProbe, MMAdapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.config import stems
from vlmtune.data.collate import collate
from vlmtune.data.noun_phrases import NounPhrases
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.export import save_export
from vlmtune.objectives import ITM, InfoNCE, Objective, OnEmbeddings, PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.training import FSDP2, AdaptationModule, BenchmarkCallback
from vlmtune.training.failures import publish_failure
from vlmtune.types import Group

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

PLUGIN_KINDS = [
    "pairs",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("objectives", "adapters")),
]
FUSED = ("matching", "fusion_tuning")


# What the records of a batch hold, by a letter each.


def pair(key):
    """Two images with a caption each, a false text that other ranks have too, and a mined one."""
    texts = ("a red cube left of the blue sphere", "a blue cube", "dog")
    names = (f"{key}-a", f"{key}-b", "dog")
    true = tuple(frozenset({name}) for name in names[:2])
    mined = frozenset({"100-a", "110-a", "000-a"})
    truth = torch.eye(2, 3, dtype=torch.bool)
    return Group(key, (f"{key}-0", f"{key}-1"), names, texts, truth, true, mined_negatives=mined)


def lone(key, name=None, text="a green sphere"):
    """One image and its caption: no negative of its own."""
    name = name or f"{key}-a"
    truth = torch.ones(1, 1, dtype=torch.bool)
    return Group(key, (f"{key}-0",), (name,), (text,), truth, (frozenset({name}),), exhaustive=True)


def shared(key):
    """One image and a caption that other ranks have too, who may keep its column."""
    return lone(key, "dog", "dog")


def untrue(key):
    """One image, and a text that is false of it: no true pair."""
    return replace(lone(key), truth=torch.zeros(1, 1, dtype=torch.bool), true_ids=(frozenset(),))


KINDS = {"p": pair, "l": lone, "s": shared, "u": untrue}
# The records of each rank in each step.
STEPS = (
    ("ppp", "l", "s"),
    ("s", "s", "s"),  # nothing is a hard negative, and only the first rank has a column
    ("l", "pp", "u"),
    ("u", "u", "p"),  # two ranks have no true pair
)


@cache
def batch(rank, step):
    groups = []
    for number, letter in enumerate(STEPS[step][rank]):
        groups.append(KINDS[letter](f"{step}{rank}{number}"))
    made = collate(groups, damaged=("a record",) if rank == 1 else ())
    chances = torch.Generator().manual_seed(10 * step + rank)
    pixels = torch.randn(len(made.image_ids), 3, 32, 32, generator=chances)
    return replace(made, pixels=pixels, phrases=collate(NounPhrases().groups(groups)))


class Step(nn.Module):
    """A training step as the call of a module, as DDP takes it."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, *given):
        return self.made.training_step(*given)


def train(made, rank, steps=STEPS, **options):
    """Takes steps under DDP, without a trainer: that takes ten times as long."""
    made._trainer = SimpleNamespace(
        precision_plugin=None,
        accumulate_grad_batches=1,
        global_step=0,
        global_rank=rank,
        log_every_n_steps=1,
    )
    made.log = lambda *arguments, **named: None
    made.train()
    trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-3)
    wrapped = DistributedDataParallel(Step(made), **options)
    for step, _ in enumerate(steps):
        made.on_train_batch_start(batch(rank, step), step)
        optimizer.zero_grad()
        wrapped(batch(rank, step), step).backward()
        made.on_before_optimizer_step(optimizer)
        optimizer.step()


def module(adapter, objectives, pairs=None, family="open_clip", teacher=None):
    return lambda: AdaptationModule(backbone(family), adapter, objectives, pairs, teacher=teacher)


def objectives(folder):
    for stem in stems("objectives"):
        objective = plugin_of("objectives", stem, Objective)
        teacher = str(folder) if "teacher" in objective.needs else None
        # What trains only some weights needs company: DDP has no gradient of the others.
        company = [InfoNCE()] if objective.regulariser else []
        dual = FullFineTuning(tokens="tokens" in objective.needs)
        yield f"{stem}, dual", module(dual, [objective, *company], teacher=teacher)
        yield f"{stem}, joint", module(joint(), [objective, *company], teacher=teacher)
    both = FusionTuning(contrast=True)
    yield "both", module(both, [OnEmbeddings(InfoNCE()), ITM()], family="flava")


def adapters(folder):
    for stem in stems("adapters"):
        adapter = plugin_of("adapters", stem, Adapter)
        objective = PairBCE() if adapter.joint else InfoNCE()
        family = "flava" if stem in FUSED else "open_clip"
        if stem != "zero_shot":  # trains nothing
            yield stem, module(adapter, [objective], family=family)


def pairs(folder):
    for stem in stems("pairs"):
        policy = plugin_of("pairs", stem, PairPolicy)
        eqsim = plugin_of("objectives", "eqsim", Objective)
        yield stem, module(joint(), [PairBCE(), eqsim], policy)


KINDS_OF_PLUGINS = {"objectives": objectives, "adapters": adapters, "pairs": pairs}


def joint():
    return MMAdapter(heads=2, hidden=2)


@contextmanager
def noted(name, out):
    """Adds the name, the collectives of the block and the error that ended it."""
    error = None
    with Collectives() as made:
        try:
            yield
        except Exception:
            error = traceback.format_exc()
    out.append((name, made.calls, error))


def plugins(rank, kind, folder):
    # A rank that waits for a collective of another would wait half an hour.
    dist.set_timeout(timedelta(seconds=120))
    out = []
    for name, make in KINDS_OF_PLUGINS[kind](folder):
        torch.manual_seed(1)
        try:
            made = make()
        except UserError:  # the objective does not fit the adapter
            continue
        with noted(name, out):
            train(made, rank)
        if out[-1][2]:
            break
    return out


@pytest.fixture(scope="module")
def teacher(model_folder, tmp_path_factory):
    """The export of a dual adapter, which teaches."""
    for family in ("open_clip", "flava"):
        backbone(family)  # once, before ranks are forked
    folder = tmp_path_factory.mktemp("teacher") / "export"
    model = OpenClip(str(model_folder))
    adapter = FullFineTuning()
    adapter.attach(model)
    save_export(folder, model, adapter, provenance={})
    return folder


def assert_same(by_rank):
    for parts in zip(*by_rank, strict=True):
        names, calls, errors = zip(*parts, strict=True)
        assert len({*names}) == 1
        found = difference(list(calls))
        assert found is None, f"{names[0]}: {found}\n{errors}"
        assert not any(errors), f"{names[0]}: {errors}"
        assert calls[0]


def static_graph(rank):
    """What three adapters trained without and with `static_graph`: a pair of weights for each."""
    out = []
    for stem in ("full_finetuning", "lora", "mm_adapter"):
        for static in (False, True):
            adapter = plugin_of("adapters", stem, Adapter)
            made = module(adapter, [PairBCE() if adapter.joint else InfoNCE()])()
            # The second step is the first that uses what the first has noted.
            train(made, rank, steps=STEPS[:2], static_graph=static)
            out.append(weights(made))
    return list(zip(out[::2], out[1::2], strict=True))


def test_a_static_graph_gives_the_same_weights(tmp_path):
    backbone()  # once, before ranks are forked
    for pairs_of_weights in run_ranks(2, tmp_path / "ranks", static_graph):
        for one, other in pairs_of_weights:
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("kind", PLUGIN_KINDS)
def test_plugins(kind, teacher, tmp_path):
    by_rank = run_ranks(3, tmp_path / "ranks", plugins, kind, teacher)
    assert_same(by_rank)
    named = {name.partition(",")[0] for name, _, _ in by_rank[0]}
    assert named >= {*stems(kind)} - {"zero_shot"}


# Whole runs of a trainer, in one pair of processes.


def runs(rank, folder, model_folder, shards, damaged):
    """Names, collectives and errors of runs; the last one ends on rank 1 alone."""
    dist.set_timeout(timedelta(seconds=120))
    torch.set_num_threads(1)
    corpora = [groups((3, 2), seed) for seed in range(3)]
    distinct = [groups((3, 2), seed, distinct=True) for seed in range(3)]
    held_out = [corpora[0][0]], [corpora[0][1], corpora[1][1]]
    ddp = {"devices": 2, "strategy": "ddp"}
    many = {**ddp, "accumulate_grad_batches": 2}

    def stored(name):
        evaluation = BenchmarkCallback([cola(folder)], every_n_epochs=0, every_n_steps=1)
        options = {"store": str(folder / "store")}
        made = module_of(model_folder, LinearProbe(), [InfoNCE()], **options)
        fit(made, shards, folder / name, 3, (evaluation,), val=True, **ddp)

    cases = {
        "accumulated": lambda: trained(rank, corpora, folder, held_out, **many),
        "in chunks": lambda: trained(rank, corpora, folder, held_out, chunk=2, **many),
        "store, validation and benchmark": lambda: stored("building"),
        "the store again": lambda: stored("reading"),
        "damaged": lambda: train_damaged(rank, damaged, model_folder, folder, 0, 0.01),
        "NaN scores": lambda: broken(rank, distinct, folder, "image"),
        "NaN gradient": lambda: steep(rank, distinct, folder),
        "SIGTERM": lambda: stops(rank, corpora, folder, signal.SIGTERM, 1),
    }
    out = []
    for name, run in cases.items():
        with noted(name, out):
            run()
    with noted("too much damage", out):
        try:
            train_damaged(rank, damaged, model_folder, folder, 0, 0.0)
        except UserError:  # as `vlmtune fit` does with it
            publish_failure("damage")
            raise
    return out


def cola(folder):
    return ColaMulti(str(folder / "cola/cola.json"), str(folder / "cola"))


def test_runs(model_folder, shards, tmp_path):
    write_cola(tmp_path / "cola")
    damaged = ShardSet(str(shutil.copytree(shards, tmp_path / "damaged")))
    spoil(damaged, keys_of(damaged, 1)[1][1])  # in the second batch of rank 1
    arguments = (tmp_path, model_folder, shards, damaged)
    by_rank = run_ranks(2, tmp_path / "ranks", runs, *arguments)
    stopped = [calls.pop() for calls in by_rank]
    assert_same(by_rank)
    (_, waited, lost), (_, made, error) = stopped
    assert "expected at most 0 damaged" in error
    assert "DistBackendError" in lost or "RuntimeError" in lost, lost
    # The other rank waits in the first collective that this one no longer makes.
    assert difference([waited[:-1], made]) is None


def in_parts(rank, folder, model_folder, shards):
    """The same of runs under FSDP2, with checkpoints that are gathered or written in parts."""
    dist.set_timeout(timedelta(seconds=120))
    out = []
    for adapter, objective in ((FullFineTuning, InfoNCE), (joint, PairBCE)):
        for sharded in (False, True):
            name = f"{objective.__name__}, {sharded}"
            made = module_of(model_folder, adapter(), [objective()])
            options = {"devices": 2, "strategy": FSDP2(sharded_checkpoints=sharded)}
            with noted(name, out):
                fit(made, shards, folder / name, 2, save=True, val=True, **options)
    return out


@pytest.mark.slow
def test_fsdp2(model_folder, shards, tmp_path):
    assert_same(run_ranks(2, tmp_path / "ranks", in_parts, tmp_path, model_folder, shards))
