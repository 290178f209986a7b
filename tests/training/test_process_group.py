import itertools
from dataclasses import replace

import pytest
import torch

from tests.ranks import run_ranks
from tests.refusals import refused
from tests.runs import QUIET, Batches, quiet_trainer
from tests.toy import Together, Toy, Tune, batch, groups
from vlmtune.data.collate import collate
from vlmtune.data.datamodule import NoBatches
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives import InfoNCE, Objective, PairBCE, ShardedObjective
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.finite import finite_gradients
from vlmtune.training.module import AdaptationModule
from vlmtune.training.score_shards import gather_all
from vlmtune.training.shard_layout import shard_layout
from vlmtune.types import Scores, ScoreShard, Tokens

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

SIZES = {2: (3, 2), 4: (2, 3, 1, 2)}


def rows(rank):
    """A rank's part of a matrix: another number of rows each, the third has none."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn([2, 3, 0, 1][rank], 3, generator=generator, dtype=torch.float64)


def parts(rank, everything, total):
    """A part of a loss, another on each rank, that depends on what all ranks gave."""
    return ((rank + 1) * everything.sin()).sum() + (total * (rank + 2)).square().sum()


def gathers(rank):
    x = rows(rank).requires_grad_()
    ranks = ProcessGroup()
    everything, total = ranks.gather(x), ranks.sum(x.sum(dim=0))
    parts(rank, everything, total).backward()
    lengths = [2, 5, 1, 3][rank]
    gathered = ranks.gather(Tokens.full(torch.full((len(x), lengths, 2), float(rank))))
    kinds = [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32]
    same = [ranks.gather(torch.ones(rank + 1, dtype=kind)) for kind in kinds]
    half = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    ranks.sum(half).sum().backward()
    objects = ranks.objects(f"of {rank}")
    counts = ranks.sum(torch.tensor([rank, 1])).tolist()
    return (
        (everything.detach(), total.detach(), x.grad),
        (gathered.values, gathered.mask.sum(dim=1).tolist()),
        [(str(x.dtype), len(x), bool(x.all())) for x in same],
        (objects, counts, half.grad.item(), (ranks.rank, ranks.size)),
    )


def test_sums_and_gathers_and_their_gradients(tmp_path):
    given = run_ranks(4, tmp_path, gathers)
    inputs = [rows(rank).requires_grad_() for rank in range(4)]
    whole = torch.cat(inputs)
    sum(parts(rank, whole, whole.sum(dim=0)) for rank in range(4)).backward()
    for rank, (numbers, tokens, same, rest) in enumerate(given):
        everything, total, gradient = numbers
        assert everything.equal(whole.detach())
        torch.testing.assert_close(total, whole.detach().sum(dim=0))
        torch.testing.assert_close(gradient, inputs[rank].grad)
        assert tokens[0].shape == (6, 5, 2)
        assert tokens[1] == [2, 2, 5, 5, 5, 3]
        kinds = ["bool", "int64", "float16", "bfloat16", "float32"]
        assert same == [(f"torch.{kind}", 10, True) for kind in kinds]
        assert rest == ([f"of {r}" for r in range(4)], [6, 4], 4.0, (rank, 4))


def places(rank, corpora, merged):
    found = []
    for corpus in corpora:
        where = shard_layout(collate(corpus[rank]), ProcessGroup(), merged)
        targets = where.row_targets, where.column_targets
        scores = [Scores.full(torch.zeros(x.truth.shape)) for x in targets]
        share = ScoreShard(scores[0], targets[0], scores[1], targets[1])
        found.append((where, gather_all(share, ProcessGroup())[1]))
    return found


def parts_of(targets):
    return targets.truth, targets.known, targets.same_group, targets.mined_negatives


def with_mined(part):
    """Groups of a rank, each with some captions of the others."""
    texts = [name for group in part for name in group.text_ids]
    return [replace(one, mined_negatives=frozenset(texts[i::2])) for i, one in enumerate(part)]


def some_corpora():
    corpora = [groups((2, 3, 1, 2), seed) for seed in range(8)]
    corpora.append([corpora[0][0], corpora[0][0], corpora[0][1], corpora[0][1]])  # none own
    return corpora


def test_truth_across_ranks_is_that_of_one_batch(tmp_path):
    corpora = [[with_mined(part) for part in corpus] for corpus in some_corpora()]
    given = run_ranks(4, tmp_path, places, corpora, True)
    for number, corpus in enumerate(corpora):
        want = collate([group for part in corpus for group in part])
        row = column = 0
        for rank, part in enumerate(corpus):
            (got, everything), mine = given[rank][number], collate(part)
            assert (got.row_start, got.column_start) == (row, column)
            n, m = len(mine.image_ids), len(got.texts)
            texts = [mine.texts[j] for j in got.texts.tolist()]
            assert texts == list(want.texts[column : column + m])
            some = (got.row_targets, got.column_targets, everything, want.targets)
            for own, other, both, y in zip(*map(parts_of, some), strict=True):
                assert own.equal(y[row : row + n])
                assert other.equal(y[:, column : column + m])
                assert both.equal(y)
            row, column = row + n, column + m
        assert (row, column) == want.targets.truth.shape


def test_without_merging_every_text_keeps_its_column_and_its_truth(tmp_path):
    corpora = some_corpora()
    given = run_ranks(4, tmp_path, places, corpora, False)
    for number, corpus in enumerate(corpora):
        batches = [collate(part) for part in corpus]
        names = [name for one in batches for name in one.text_ids]
        for rank, mine in enumerate(batches):
            got, everything = given[rank][number]
            for targets in (got.row_targets, got.column_targets, everything):
                assert targets.mined_negatives is None
            assert got.texts.tolist() == list(range(len(mine.texts)))
            want = [[name in true for name in names] for true in mine.true_ids]
            assert got.row_targets.truth.tolist() == want
            stop = got.column_start + len(mine.texts)
            block = got.row_targets.same_group[:, got.column_start : stop]
            assert block.equal(mine.targets.same_group)
            assert got.row_targets.same_group.sum() == block.sum()


class Spread(Objective):
    """No sum over rows nor columns: it cannot be shared."""

    def forward(self, scores, targets):
        return scores.values[targets.truth].logsumexp(dim=0) + scores.values.square().mean().sqrt()


class Uniform(Objective):
    """Reads what the scores are made of, as a whole."""

    needs = frozenset({"embedded", "tokens", "reference"})

    def forward(self, scores, targets):
        made = scores.embedded
        gram = (made.image @ made.image.T).exp().mean().log() * made.scale
        tokens = made.text_tokens.values.square().sum() * made.image_tokens.values.mean()
        drift = (scores.values - scores.reference).abs().mean().sqrt()
        return gram + made.text.std(dim=0).sum() + tokens.tanh() + drift


class Aligned(ShardedObjective):
    """Reads everything a share has, its own rows and columns among all by their positions."""

    needs = frozenset({"embedded", "tokens", "reference"})

    def shard_loss(self, shard, group):
        rows, columns = shard.rows, shard.columns
        count = group.sum(torch.tensor(len(rows.values)))
        best = group.gather(rows.values.logsumexp(dim=1))
        own = best[shard.row_start : shard.row_start + len(rows.values)]
        text = columns.embedded.text
        positions = torch.arange(len(text)) + shard.column_start
        drift = (rows.values - rows.reference).square().sum()
        drift = drift + (columns.values * columns.reference).sin().sum()
        tokens = rows.embedded.text_tokens.values.sum() * rows.embedded.image_tokens.values.sum()
        tokens = tokens + columns.embedded.image_tokens.values.square().sum() * text.sum()
        return (
            own.sum() * best.square().mean() / count
            + (text.sum(dim=1) * positions).sum()
            + drift * rows.embedded.scale
            + tokens
        ) / count


class Blocks(PairPolicy):
    """The pairs of one rank: what a process with all batches scores in their place."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __call__(self, targets, generator):
        pairs, row, column = torch.zeros_like(targets.truth), 0, 0
        for n, m in self.sizes:
            pairs[row : row + n, column : column + m] = True
            row, column = row + n, column + m
        return pairs


DUAL = [InfoNCE(), PairBCE(0.5), PairBCE(2.0, balanced=True), Spread(0.3)]
CASES = {
    "dual": (lambda: Tune(), lambda: DUAL),
    "tokens": (lambda: Tune(kind="tokens"), lambda: [Uniform(), Aligned(0.1)]),
    "joint": (lambda: Together(), lambda: [PairBCE(balanced=True), PairBCE(), InfoNCE(), Spread()]),
}


def step(case, corpora, rank, chunk=None, pairs=None):
    """Losses and gradients of one rank, gradients averaged as DDP would."""
    adapter, objectives = CASES[case]
    torch.manual_seed(1)
    made = AdaptationModule(Toy(), adapter(), objectives(), pairs, chunk=chunk)
    out, ranks = [], ProcessGroup()
    for corpus in corpora:
        logged = []
        made.log = lambda name, value, **_: logged.append((name, float(value)))  # noqa: B023
        made.zero_grad()
        made.training_step(batch(corpus[rank]), 0).backward()
        averaged = {
            name: ranks.sum(torch.zeros_like(p) if p.grad is None else p.grad) / ranks.size
            for name, p in made.named_parameters()
            if p.requires_grad
        }
        out.append((logged, averaged))
    return out


def many_steps(rank, corpora, chunks):
    return {
        (case, chunk): step(case, corpora[case == "joint"], rank, chunk)
        for case in CASES
        for chunk in chunks
    }


def assert_same(got, want):
    assert [name for name, _ in got[0]] == [name for name, _ in want[0]]
    assert [v for _, v in got[0]] == pytest.approx([v for _, v in want[0]], rel=1e-9)
    assert got[1].keys() == want[1].keys()
    for name, gradient in want[1].items():
        torch.testing.assert_close(got[1][name], gradient, msg=lambda s, n=name: f"{n}: {s}")
    assert any(gradient.any() for gradient in want[1].values())


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_loss_and_gradient_are_those_of_one_process(size, tmp_path):
    shared = [groups(SIZES[size], seed) for seed in range(2)]
    shared.append([shared[0][0]] * size)  # all ranks have the same captions
    corpora = shared, [groups(SIZES[size], 0, True)]
    chunks = (None, 2) if size == 2 else (None,)
    given = run_ranks(size, tmp_path, many_steps, corpora, chunks)
    blocks = [collate(part).targets.truth.shape for part in corpora[1][0]]
    for case in CASES:
        whole = [[[g for part in corpus for g in part]] for corpus in corpora[case == "joint"]]
        wanted = step(case, whole, 0, pairs=Blocks(blocks))
        for rank, chunk in itertools.product(range(size), chunks):
            for got, want in zip(given[rank][case, chunk], wanted, strict=True):
                assert_same(got, want)


def trained(rank, corpora, folder, held_out, **options):
    """Weights after a step on each batch, and the numbers that are logged."""
    torch.manual_seed(1)
    made = AdaptationModule(Toy(), Tune(), DUAL, warmup=0.0, chunk=options.pop("chunk", None))
    trainer = quiet_trainer(max_steps=len(corpora), default_root_dir=folder, **options)
    batches = [batch(corpus[rank]) for corpus in corpora]
    trainer.fit(made, Batches(batches), Batches([batch(part) for part in held_out[rank]]))
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {n: p.detach().clone() for n, p in made.named_parameters()}, logged


def two(rank, corpora, folder, held_out):
    options = {"devices": 2, "strategy": "ddp"}
    return [trained(rank, corpora, folder, held_out, chunk=chunk, **options) for chunk in (None, 2)]


def test_training_on_two_ranks_is_training_on_one(tmp_path):
    corpora = [groups((3, 2), seed) for seed in range(3)]
    together = [[[group for part in corpus for group in part]] for corpus in corpora]
    # Seven records in three batches: neither divides evenly over the ranks.
    held_out = [corpora[0][0]], [corpora[0][1], corpora[1][1]]
    want, logged = trained(0, together, tmp_path, [held_out[0] + held_out[1]], devices=1)
    start = dict(AdaptationModule(Toy(), Tune(), DUAL).named_parameters())
    assert not all(torch.equal(value, start[name]) for name, value in want.items())
    for runs in run_ranks(2, tmp_path / "ranks", two, corpora, tmp_path, held_out):
        for weights, numbers in runs:
            assert weights.keys() == want.keys()
            for name, value in want.items():
                torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-9)
            assert numbers == pytest.approx(logged, rel=1e-6)


def broken(rank, corpora, folder, side):
    """What each rank says where the second batch of rank 1 has an image or text of no number."""
    torch.manual_seed(1)
    adapter = Tune()
    embed, calls = getattr(adapter, f"embed_{side}"), []

    def spoilt(features):
        rows = embed(features)
        calls.append(len(rows))
        factors = torch.ones(len(rows), 1, dtype=rows.dtype)
        factors[-1] = torch.nan if (rank, len(calls)) == (1, 2) else 1
        return rows * factors

    setattr(adapter, f"embed_{side}", spoilt)
    return stopped(AdaptationModule(Toy(), adapter, DUAL), rank, corpora, folder)


def stopped(made, rank, corpora, folder):
    """What a rank says, and whether the weights were saved."""
    trainer = quiet_trainer(devices=2, strategy="ddp", max_steps=3, default_root_dir=folder)
    batches = Batches([batch(corpus[rank]) for corpus in corpora])
    with refused() as error:
        trainer.fit(made, batches, NoBatches())
    return str(error.value), (folder / "last-before-nan.ckpt").is_file()


@pytest.mark.parametrize(("side", "distinct"), [("text", True), ("image", False)])
def test_what_is_no_number_on_one_rank_stops_all(side, distinct, tmp_path):
    corpora = [groups((3, 2), seed, distinct) for seed in range(3)]
    one, other = run_ranks(2, tmp_path / "ranks", broken, corpora, tmp_path, side)
    assert one == other
    said, saved = one
    assert saved
    assert "expected finite scores for InfoNCE, PairBCE, PairBCE-2, Spread" in said
    assert f"at step 1 (first record {corpora[1][1][-1].key!r})" in said


def steep(rank, corpora, folder):
    """What each rank says where the second gradient of rank 1 has a NaN."""
    own = torch.nn.Parameter(torch.zeros(2))
    own.grad = torch.tensor([1.0, torch.inf if rank else 1.0])
    agreed = [finite_gradients([own], ProcessGroup(alone=alone)) for alone in (False, True)]
    torch.manual_seed(1)
    made, calls = AdaptationModule(Toy(), Tune(), DUAL), []

    def spoilt(gradient):
        calls.append(rank)
        return gradient * (torch.nan if (rank, len(calls)) == (1, 2) else 1)

    made.adapter.text.weight.register_hook(spoilt)
    said, saved = stopped(made, rank, corpora, folder)
    return agreed, said, all(value.isfinite().all() for value in made.state_dict().values()), saved


def test_a_gradient_that_is_no_number_on_one_rank_stops_all(tmp_path):
    corpora = [groups((3, 2), seed, distinct=True) for seed in range(3)]
    one, other = run_ranks(2, tmp_path / "ranks", steep, corpora, tmp_path)
    assert (one[0], other[0]) == ([False, True], [False, False])
    assert one[1:] == other[1:]
    _, said, finite, saved = one
    assert finite
    assert saved
    assert "in the gradient of 'adapter.text.weight' at step 1 " in said
    assert f"(its batch begins with record {corpora[1][0][0].key!r})" in said
