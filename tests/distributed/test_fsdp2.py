"""FSDP2 on two gloo ranks: weights, checkpoints, benchmarks and resumed runs are those of DDP."""

import copy
from pathlib import Path

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import CSVLogger
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from tests.adapters.families import backbone
from tests.distributed.test_collectives import cola
from tests.distributed.test_real_adapters import assert_close, corpora, trained
from tests.ranks import run_ranks
from tests.refusals import refused
from tests.runs import QUIET, fit, module
from tests.tiny import fit_config, keeping, plugin, write_cola
from vlmtune.adapters import FullFineTuning, LastBlocks, LoRA
from vlmtune.cli.main import main
from vlmtune.cli.run_folder import AtomicCheckpoints
from vlmtune.model import check_checkpoint, load
from vlmtune.model.layout import WEIGHTS
from vlmtune.model.loading import REST
from vlmtune.objectives import DeGLA, InfoNCE
from vlmtune.training import EMA, FSDP2, BenchmarkCallback, RetentionBudget, RunMonitor
from vlmtune.training.checkpoint_files import newest_checkpoint

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

CASES = [
    ("full_finetuning", "open_clip"),
    ("full_finetuning", "flava"),
    ("last_blocks", "open_clip"),
    ("lora", "hf_clip"),
    ("mm_adapter", "open_clip"),
    ("compressed with contrast", "open_clip"),
]
JOINT = ("mm_adapter", "compressed with contrast")


def ways():
    return ("ddp", FSDP2())


def each_way(rank, adapter, model, corpus, folder, pattern):
    options = {"pattern": pattern, "devices": 2}
    return [
        trained(rank, adapter, copy.deepcopy(model), corpus, folder, strategy=way, **options)
        for way in ways()
    ]


FITTING = "*[!a]"  # FSDP2 refuses the averaged weights of DeGLA
SLOW = [pytest.param(*case, "[hio]*", marks=pytest.mark.slow) for case in CASES[1:]]


@pytest.mark.parametrize(("adapter", "family", "pattern"), [(*CASES[0], FITTING), *SLOW])
def test_it_trains_as_ddp_does(adapter, family, pattern, tmp_path):
    """Under all objectives once, each kind of weights under those of few names, such as InfoNCE."""
    corpus = corpora(joint=adapter in JOINT)
    arguments = adapter, backbone(family), corpus, tmp_path, pattern
    for one, other in run_ranks(2, tmp_path / "ranks", each_way, *arguments):
        assert_close(other[1:], one[1:])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def run(model_folder, shards, folder, strategy, adapter=None, **options):
    """Trains with checkpoints, validation, benchmarks, clipping and a logger."""
    callback = BenchmarkCallback([cola(folder.parent)], every_n_steps=1)
    made = module(model_folder, adapter or FullFineTuning(), [InfoNCE()], optimizer=sgd)
    trainer, watch = fit(
        made,
        shards,
        folder,
        callbacks=(callback, RunMonitor()),
        save=True,
        val=True,
        devices=2,
        strategy=strategy,
        gradient_clip_val=0.5,
        log_every_n_steps=1,
        logger=CSVLogger(folder / "log"),
        **options,
    )
    numbers = {n: float(v) for n, v in trainer.callback_metrics.items()}
    return watch.losses, numbers, made


def runs(rank, model_folder, shards, folder):
    """Losses, logged numbers and how much of the weights this rank holds, of four runs."""
    out = {}
    for name, strategy in zip(("ddp", "fsdp2"), ways(), strict=True):
        losses, numbers, made = run(model_folder, shards, folder / name, strategy, steps=4)
        out[name] = losses, numbers
    held = [p.to_local() if isinstance(p, DTensor) else p for p in made.parameters()]
    out["held"] = sum(p.numel() for p in held) / sum(p.numel() for p in made.parameters())
    for name, source, strategy in (("on", "ddp", FSDP2()), ("back", "fsdp2", "ddp")):
        resume = folder / source / "stepstep=2.ckpt"
        losses, numbers, _ = run(
            model_folder, shards, folder / name, strategy, steps=4, resume=resume
        )
        out[name] = losses, numbers
    return out


@pytest.fixture
def folder(tmp_path):
    write_cola(tmp_path / "cola")
    return tmp_path


@pytest.mark.slow
def test_checkpoints_benchmarks_and_resumed_runs_are_those_of_ddp(
    model_folder, shards, folder, monkeypatch
):
    given = run_ranks(2, folder / "ranks", runs, model_folder, shards, folder)
    for rank in given:
        losses, numbers = rank["ddp"]
        assert len(losses) == 4
        assert {"cola_multi/accuracy", "val/loss"} <= numbers.keys()
        for name, whole in (("fsdp2", 4), ("on", 2), ("back", 2)):
            assert rank[name][0] == pytest.approx(losses[-whole:], rel=1e-4)
            assert rank[name][1] == pytest.approx(numbers, rel=1e-3)
        assert 0.49 < rank["held"] < 0.52

    logs = [next((folder / n / "log").rglob("metrics.csv")).read_text() for n in ("ddp", "fsdp2")]
    norms = [column(log, "train/gradient_norm") for log in logs]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    assert len(norms[0]) == 4

    last = [folder / name / "stepstep=4.ckpt" for name in ("ddp", "fsdp2", "on", "back")]
    want, *others = (torch.load(path, weights_only=True) for path in last)
    for got in others:
        assert got["state_dict"].keys() == want["state_dict"].keys()
        for name, value in want["state_dict"].items():
            torch.testing.assert_close(got["state_dict"][name], value, rtol=1e-3, atol=1e-5)
        optimizers = [one["optimizer_states"][0] for one in (want, got)]
        assert optimizers[0]["param_groups"] == optimizers[1]["param_groups"]
        states = [one["state"] for one in optimizers]
        assert states[0].keys() == states[1].keys()
        for number, state in states[0].items():
            mine, theirs = states[1][number]["momentum_buffer"], state["momentum_buffer"]
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)

    monkeypatch.chdir(folder)
    assert main(["export", str(last[1]), "--out", "exported"]) == 0
    exported = load("exported")
    for name, value in exported.backbone.named_parameters():
        if (trained := want["state_dict"].get(f"backbone.{name}")) is not None:
            torch.testing.assert_close(value, trained, rtol=1e-3, atol=1e-5)


class Whole(EarlyStopping):
    """Gathers all weights and the optimizer's state at each step, and as training begins."""

    def __init__(self):
        super().__init__("train/loss", check_on_train_epoch_end=True)
        self.states = {}

    def note(self, trainer, pl_module, *_):
        content = [pl_module.state_dict(), trainer.optimizers[0].state_dict()]
        whole = tree_map_only(DTensor, lambda part: part.full_tensor(), content)
        self.states[trainer.global_step] = copy.deepcopy(whole)

    on_train_start = on_train_batch_end = note


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.001, eps=0.001)


def in_parts(rank, model_folder, shards, folder, ranks, resume=None):
    """States by step of a run whose batches have 12 groups; one rank is without FSDP2."""
    made = module(model_folder, FullFineTuning(), [InfoNCE()], optimizer=adamw)
    whole = Whole()
    options = {"devices": ranks, "batch_size": 12 // ranks, "resume": resume}
    if ranks == 1:
        options["plugins"] = [AtomicCheckpoints()]
    else:
        options["strategy"] = FSDP2(sharded_checkpoints=True)
    trainer, _ = fit(made, shards, folder, 4, (whole,), save=True, **options)
    if ranks > 1:
        with trainer.strategy.whole_weights():  # as at the end of a validation
            trainer.save_checkpoint(folder / "last.ckpt")
        trainer.strategy._sharded_checkpoints = False
        trainer.save_checkpoint(folder / "gathered.ckpt")
    return whole.states


def close(one, other, rtol=0.0, atol=0.0):
    torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.slow
def test_a_sharded_checkpoint_resumes_on_other_numbers_of_ranks(
    model_folder, shards, tmp_path, monkeypatch
):
    sizes = (4, 2, 3, 1)
    folders = [tmp_path / f"{ranks}" for ranks in sizes]
    first = run_ranks(sizes[0], folders[0], in_parts, model_folder, shards, folders[0], sizes[0])
    uninterrupted = before = first[0]
    for step, ranks in enumerate(sizes[1:], start=1):
        saved = folders[step - 1] / f"stepstep={step}.ckpt"
        assert len(list(saved.glob("*.safetensors"))) == sizes[step - 1]
        arguments = model_folder, shards, folders[step], ranks, saved
        if ranks == 1:
            states = in_parts(0, *arguments)
        else:
            states = run_ranks(ranks, folders[step], in_parts, *arguments)[0]
        assert min(states) == step
        close(states[step], before[step])
        close(states[4], uninterrupted[4], rtol=1e-3, atol=1e-5)
        before = states

    monkeypatch.chdir(folders[0])
    weights = check_checkpoint("last.ckpt")["state_dict"].values()
    assert all(value.is_meta for value in weights if value.ndim)
    for name in ("last.ckpt", "gathered.ckpt"):
        assert main(["export", name, "--out", f"export of {name}"]) == 0
    one, other = (path.read_bytes() for path in Path().glob(f"export*/{WEIGHTS}"))
    assert one == other


def command(rank, *words):
    return main([*words])


def test_commands_take_a_sharded_checkpoint_and_replace_it(
    model_folder, shards, tmp_path, monkeypatch
):
    callback = keeping(every_n_train_steps=1, save_last=True)
    trainer = {"max_steps": 2, "callbacks": [callback], "strategy": plugin("training.fsdp2.FSDP2")}
    config = fit_config(tmp_path / "a", model_folder, shards, trainer=trainer)
    fit_words = ["fit", "--config", str(config)]
    sharded = ["--trainer.strategy.init_args.sharded_checkpoints", "true"]
    assert run_ranks(1, tmp_path / "ranks", command, *fit_words, *sharded) == [0]
    folder = tmp_path / "a/run/checkpoints"
    last = folder / "last.ckpt"
    assert newest_checkpoint(tmp_path / "a/run") == last
    saved = {path.name for path in folder.iterdir() if (path / REST).is_file()}
    assert saved == {"last.ckpt", "epoch=0-step=2.ckpt"}  # step 1 was removed
    before = load(last).adapter.state_dict()

    more = ["--trainer.strategy", "auto", "--trainer.max_steps", "3", "--ckpt_path", str(last)]
    assert main([*fit_words, *more]) == 0
    assert last.is_file()
    assert load(last).adapter.state_dict().keys() == before.keys()


def column(log, name):
    """The numbers of a column of a CSV file, where it has one."""
    header, *rows = (line.split(",") for line in log.splitlines())
    return [float(row[header.index(name)]) for row in rows if row[header.index(name)]]


def scaled(rank, model_folder, shards, folder):
    """Learning rates of the weights after a step, by name."""
    out = []
    for strategy in ways():
        made = module(model_folder, LastBlocks(2, 2, decay=0.5), [InfoNCE()], optimizer=sgd)
        trainer, _ = fit(made, shards, folder, steps=1, devices=2, strategy=strategy)
        names = {id(p): name for name, p in made.named_parameters()}
        groups = trainer.optimizers[0].param_groups
        out.append({names[id(p)]: g["initial_lr"] for g in groups for p in g["params"]})
    return out


def test_each_layer_keeps_its_learning_rate(model_folder, shards, tmp_path):
    for one, other in run_ranks(2, tmp_path / "ranks", scaled, model_folder, shards, tmp_path):
        assert one == other
        assert {*one.values()} == {0.01, 0.005, 0.0025}  # the tail, the last block, the one before


def refusals(rank, model_folder, shards, folder):
    said = []
    for options, callback in (
        ({"chunk": 2}, None),
        ({}, EMA()),
        ({}, RetentionBudget([cola(folder)], action="anneal")),
        ({"objectives": [DeGLA()]}, None),
    ):
        made = module(model_folder, LoRA(), **{"objectives": [InfoNCE()], **options})
        callbacks = () if callback is None else (callback,)
        with refused() as error:
            fit(made, shards, folder, callbacks=callbacks, devices=2, strategy=FSDP2())
        said.append(str(error.value))
    return said


def spoilt(rank, model_folder, shards, folder):
    """What is said where one rank's second gradient is no number, and what is left."""
    made, calls = module(model_folder, LoRA(), [InfoNCE()]), []

    class Spoil(EarlyStopping):
        def on_after_backward(self, trainer, pl_module):
            calls.append(rank)
            if (rank, len(calls)) == (1, 2):
                part = next(p.grad for p in pl_module.parameters() if p.grad is not None)
                part.to_local().fill_(torch.nan)

    with refused() as error:
        callback = Spoil("train/loss", check_on_train_epoch_end=True)
        fit(made, shards, folder, callbacks=(callback,), devices=2, strategy=FSDP2())
    return str(error.value), Path(folder / "last-before-nan.ckpt").is_file()


def test_what_it_cannot_do_is_refused(model_folder, shards, folder):
    given = run_ranks(2, folder / "ranks", refusals, model_folder, shards, folder)
    chunk, ema, budget, average = given[0]
    assert "got model.chunk" in chunk
    assert "got EMA" in ema
    assert "RetentionBudget" in budget
    assert "got an objective that reads averaged weights" in average


def test_a_gradient_that_is_no_number_stops_all_ranks(model_folder, shards, tmp_path):
    one, other = run_ranks(2, tmp_path / "ranks", spoilt, model_folder, shards, tmp_path)
    assert one == other
    assert "expected finite gradients" in one[0]
    assert one[1]
