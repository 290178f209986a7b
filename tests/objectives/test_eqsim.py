import itertools
import math
import random
from collections import Counter
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch
import yaml

from tests.refusals import refused
from tests.scored import assert_shares_add_up, embedded, parts, share_of
from vlmtune.config import instantiate
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives import EqSim, Objective, eqsim, true_pairs
from vlmtune.types import Embedded, Scores, ScoreShard, Targets, Tokens

CONFIGS = Path(__file__).parents[2] / "configs"


def matrix(rows):
    return torch.tensor(rows, dtype=torch.float64)


D = [[0.90, 0.95, 0.85, 0.80], [0.30, 0.55, 0.45, 0.05]]
D = matrix([*D, [0.25, 0.15, 0.50, 0.40], [0.05, 0.30, 0.20, 0.70]])
C = D.clone()
C[0] = matrix([0.60, 0.50, 0.20, 0.10])
RAW = {"normalise": "none", "weight": 1.0}
TOP2 = {"close": "topk", "k": 2, "by": "row", "count": "each"}
TOP1 = {"close": "topk", "k": 1, "by": "union", "count": "each"}
HINTS = get_type_hints(EqSim.__init__)
CHOICES = {name: kind for name, kind in HINTS.items() if get_origin(kind) is Literal}
CODE = {"v1_over": "square", "hinge": "mean", "weight": 0.5}


def eye(n):
    same = torch.eye(n, dtype=torch.bool)
    return Targets(same, torch.ones_like(same), same)


def weighted(objective, values, targets=None):
    targets = eye(len(values)) if targets is None else targets
    return objective.weight * objective(Scores.full(values), targets)


# -- published numbers ------------------------------------------------------------------------

V1 = {"v2": "none", "v1": "all"}
V2 = {"v1": "none", "v2": "all"}
CLOSE = {"v1": "none", "v2": "close"}
EASY = {"v1": "distant", "v2": "none"}
NO = {"alpha1": 0.0, "alpha2": 0.0}
SECTION_3 = {"weight": 0.5, **TOP2, "count": "once"}
TABLE_6 = {**SECTION_3, "v1": "all"}

VECTORS = [  # options, then the value on D, on C and on the softmax of C / 0.1
    ({**V1, **NO}, 0.2562500000, 0.0395833333333, 0.0262633268),
    ({**V1, **NO, "v1_over": "square"}, 0.1921875000, 0.0296875, 0.0196974951),
    ({**V1, **CODE}, 0.0760937500, 0.0, 0.0),
    ({**V2, **NO}, 0.6416666666667, 0.1083333333333, 0.0870089742 + 0.0456528005),
    ({**V2, **CODE}, 0.2808333333333, 0.0141666666667, 0.0263308874),
    ({**V2, "weight": 0.5}, 0.2866666666667, 0.0306250000, 0.0362101355),
    ({**CLOSE, **TOP2, **NO}, 0.6168750000, 0.1118750000, 0.1319315389),
    ({**CLOSE, **TOP2, **CODE}, 0.2684375000, 0.0159375000, 0.0290663366),
    ({**CLOSE, **TOP2, "weight": 0.5}, 0.2753125000, None, None),
    ({**EASY, **TOP2, **NO, "v1_over": "square"}, 0.0703125000, 0.0003125000, 0.0000014219),
    ({**TOP2, **CODE}, 0.2835937500, 0.0159375000, 0.0290663366),
    ({**TOP2, **CODE, "alpha1": 0.0}, 0.3035937500, 0.0160937500, 0.0290670475),
    ({**TOP2, **CODE, "alpha1": 0.0, "alpha2": 0.1}, 0.2528125000, None, None),
    ({**SECTION_3, "hinge": "mean"}, 0.4857500000, 0.0225, 0.0264650112),
    ({**SECTION_3, "hinge": "pair"}, 0.4927500000, 0.03675, 0.0383201090),
    ({**TABLE_6, "hinge": "mean"}, 0.3326250000, 0.0225, 0.0264650112),
    ({**TABLE_6, "hinge": "pair"}, 0.3396250000, 0.0427916666667, 0.0412871060),
    ({**CLOSE, **TOP1, **NO}, None, 0.1393750000, 0.1546809562),
    ({**EASY, **TOP1, **NO, "v1_over": "square"}, None, 0.0006250000, 0.0002251656),
    ({**TOP1, **CODE}, None, 0.0296875000, 0.0373404781),
    ({**TOP1, **CODE, "alpha1": 0.0}, None, 0.0300000000, 0.0374530609),
]


@pytest.mark.parametrize("options", [v[0] for v in VECTORS], ids=lambda o: str(list(o.values())))
def test_values_of_the_reference_functions(options):
    _, on_d, on_c, on_s = next(v for v in VECTORS if v[0] is options)
    for values, normalise, want in ((D, "none", on_d), (C, "none", on_c), (C / 0.1, "row", on_s)):
        if want is not None:
            got = weighted(EqSim(**{**RAW, **options, "normalise": normalise}), values)
            assert got.item() == pytest.approx(want, abs=1e-10)


def test_the_gradient_of_the_reference_functions():
    values = D.clone().requires_grad_()
    loss = weighted(EqSim(**{**RAW, **TOP2, **CODE}), values)
    assert loss.item() == pytest.approx(0.28359375, abs=1e-12)
    want = matrix(
        [
            [0.375, 0.325, 0.300, 0.09375],
            [-0.325, -0.200, 0.075, -0.0625],
            [-0.300, -0.075, -0.3125, 0.1],
            [-0.09375, 0.0625, -0.1, 0.1375],
        ]
    )
    torch.testing.assert_close(torch.autograd.grad(loss, values)[0], want, atol=1e-12, rtol=0)


def test_what_is_drawn_twice_counts_twice(monkeypatch):
    twice = torch.tensor([[1, 1], [0, 0], [0, 0], [0, 0]])
    monkeypatch.setattr(eqsim, "partners", lambda *_: twice)
    loss = EqSim(**{**RAW, **CLOSE, **NO, "close": "draw", "count": "each"})
    assert weighted(loss, D).item() == pytest.approx(1.10625, abs=1e-12)


METER = matrix([[2.0, 1.0, -0.5, 0.5, -1.0, 1.5, 0.7], [0.3, -0.2, 0.8, 1.1, 0.0, 2.2, -0.4]])


def fusion():
    """Two anchors, each with two negatives: of seven chosen scores an anchor, in METER's order."""
    values, computed = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.bool)
    for anchor, scores in enumerate(METER):
        i = 3 * anchor
        places = [(i, i), (i + 1, i), (i + 2, i), (i, i + 1), (i, i + 2)]
        for place, score in zip([*places, (i + 1, i + 1), (i + 2, i + 2)], scores, strict=True):
            values[place], computed[place] = score, True
    return Scores(values.requires_grad_(), computed)


@pytest.mark.parametrize(
    ("options", "none", "code"),
    [
        ({**V2, "normalise": "sigmoid"}, 0.1675292185, 0.0620368574),
        ({**V2, "normalise": "none"}, 4.4350000000, 2.1775000000),
        ({**V1, "normalise": "sigmoid"}, 0.0374335918, 0.0),
    ],
)
def test_a_fusion_encoder_is_held_to_the_pairs_it_scored(options, none, code):
    scores = fusion()
    assert EqSim(**options, **NO)(scores, eye(6)).item() == pytest.approx(none, abs=1e-10)
    loss = EqSim(**options, hinge="mean")(scores, eye(6))
    assert 0.5 * loss.item() == pytest.approx(code, abs=1e-10)
    (gradient,) = torch.autograd.grad(loss, scores.values)
    assert not gradient[~scores.computed].any()


# -- the double loop --------------------------------------------------------------------------


def random_batch(seed):
    """Groups of 0 to 3 images and 0 to 4 texts, truth across groups, a shared text, gaps."""
    chance = random.Random(seed)
    sizes = [(chance.randint(0, 3), chance.randint(0, 4)) for _ in range(chance.randint(2, 4))]
    n, m = (sum(size[d] for size in sizes) for d in (0, 1))
    truth, own = torch.zeros(n, m, dtype=torch.bool), torch.zeros(n, m, dtype=torch.bool)
    i = j = 0
    for images, texts in sizes:
        own[i : i + images, j : j + texts] = True
        for place in itertools.product(range(i, i + images), range(j, j + texts)):
            truth[place] = chance.random() < 0.5
        i, j = i + images, j + texts
    if n and m:
        image, text = chance.randrange(n), chance.randrange(m)
        truth[image, text] = True
        own[image, text] |= chance.random() < 0.5
    values = 2 * torch.randn(n, m, generator=torch.Generator().manual_seed(seed)).double()
    full = chance.random() < 0.6
    computed = torch.tensor([full or chance.random() < 0.8 for _ in range(n * m)]).view(n, m)
    return values, computed.to(torch.bool), Targets(truth, own, own)


def random_options(seed):
    chance = random.Random(1000 + seed)
    options = {name: chance.choice(get_args(choices)) for name, choices in CHOICES.items()}
    if options["v1"] == options["v2"] == "none":
        options["v2"] = "close"
    options["close"] = "topk"  # draws have tests of their own
    margins = {name: chance.choice([0.0, 0.02, 0.5]) for name in ("alpha1", "alpha2")}
    return {**options, **margins, "k": chance.randint(1, 3)}


def softmax(z, false, line, pair, query):
    """z at `query` under the softmax of a true pair and what is false on its line."""
    total = torch.stack([z[pair], *(z[place] for place in line if false[place])]).logsumexp(0)
    return (z[query] - total).exp()


def normalised(z, false, kind, pair, other):
    """The score of the image of one true pair with the text of the other."""
    query = pair[0], other[1]
    if kind == "row":
        return softmax(z, false, [(pair[0], u) for u in range(z.shape[1])], pair, query)
    return 1 / (1 + (-z[query]).exp()) if kind == "sigmoid" else z[query]


def listings(pairs, comparable, rank, o):
    """How often each true pair lists each other one as close."""
    everyone, listed = range(len(pairs)), []
    for a in everyone:
        mine = [b for b in everyone if (a, b) in comparable]
        noise = o.get("noise", torch.zeros(len(pairs), 2, len(pairs)))[a]
        keys = {
            "row": {b: rank[pairs[a][0], pairs[b][1]] + noise[0, b] for b in mine},
            "column": {b: rank[pairs[b][0], pairs[a][1]] + noise[1, b] for b in mine},
        }
        lists = {name: sorted(mine, key=lambda b, k=k: (-k[b], b)) for name, k in keys.items()}
        found = Counter()
        for direction in lists:
            if o["by"] in (direction, "union"):
                found.update(lists[direction][: o["k"]])
        listed.append(found)
    return listed


def hinged_mean(terms, margin, hinge, over=None):
    """Of pairs of deviation and weight."""
    over = sum(w for _, w in terms) if over is None else over
    if hinge == "pair":
        return sum(w * (d - margin).relu() for d, w in terms) / (over or 1)
    total = sum(w * d for d, w in terms) / (over or 1) - margin
    return max(total, 0 * total)


def comparables(pairs, computed, truth):
    found = []
    for (a, (i, t)), (b, (j, u)) in itertools.product(enumerate(pairs), repeat=2):
        if computed[i, u] and computed[j, t] and not truth[i, u] and not truth[j, t]:
            found.append((a, b))
    return found


def naive(scores, targets, o):
    z, computed, truth = scores.values, scores.computed, targets.truth
    pairs = (truth & targets.same_group & computed).nonzero().tolist()
    pairs = [(i, t) for i, t in pairs]
    captions = Counter(i for i, _ in pairs)
    weight = [1 / captions[i] for i, _ in pairs]
    false = computed & ~truth
    both = comparables(pairs, computed, truth)
    rank = z if o["ranked_by"] == "scores" else scores.reference
    listed = listings(pairs, both, rank, o)
    near = [(a, b) for a, b in both if b in listed[a] or a in listed[b]]

    def s(a, b):
        return normalised(z, false, o["normalise"], pairs[a], pairs[b])

    def mean(deviation, times, margin, over=None):
        terms = [(deviation(a, b), weight[a] * weight[b] * k) for (a, b), k in times.items()]
        return hinged_mean(terms, margin, o["hinge"], over)

    v1_pairs = {"all": both, "none": [], "distant": [p for p in both if p not in near]}[o["v1"]]
    each = {(a, b): listed[a][b] for a, b in both if listed[a][b]}
    close = each if o["count"] == "each" else dict.fromkeys(near, 1)
    v2_pairs = {"all": dict.fromkeys(both, 1), "none": {}, "close": close}[o["v2"]]
    images = sum(weight)
    over = {"pairs": None, "square": images**2}[o["v1_over"]]
    sides = (
        lambda a, b: (s(a, a) - s(a, b) - s(b, b) + s(b, a)) ** 2,
        lambda a, b: (s(a, a) - s(b, a) - s(b, b) + s(a, b)) ** 2,
    )
    loss = 0 * z.sum() + mean(
        lambda a, b: (s(a, b) - s(b, a)) ** 2, dict.fromkeys(v1_pairs, 1), o["alpha1"], over
    )
    return loss + sum(mean(side, v2_pairs, o["alpha2"]) for side in sides)


def scored(values, computed, seed):
    reference = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed + 77))
    u, v = (torch.zeros(size, 1).double() for size in values.shape)
    none = [Tokens(x[:, None], x > 0) for x in (u, v)]
    return Scores(values, computed, Embedded(u, v, torch.ones(()), *none), reference.double())


def assert_as_the_loop(seed, options, **rest):
    values, computed, targets = random_batch(seed)
    values = (3 * values).requires_grad_()
    scores = scored(values, computed, seed)
    losses = EqSim(**options)(scores, targets), naive(scores, targets, {**options, **rest})
    torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-11)
    got, want = (torch.autograd.grad(loss, values, retain_graph=True)[0] for loss in losses)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(90))
def test_values_and_gradients_are_those_of_the_loop(seed):
    assert_as_the_loop(seed, random_options(seed))


@pytest.mark.parametrize("seed", range(30))
def test_draws_with_any_other_option_are_those_of_the_loop(seed, monkeypatch):
    noise = 3 * torch.randn(20, 2, 20, generator=torch.Generator().manual_seed(seed)).double()

    def drawn(pairs):
        own, all_pairs = pairs.comparable.shape
        return noise[:own, :, :all_pairs]

    monkeypatch.setattr(true_pairs, "_noise", drawn)
    assert_as_the_loop(seed, {**random_options(seed), "close": "draw"}, noise=noise)


# -- ranks ------------------------------------------------------------------------------------


def random_cut(chance, size, ranks):
    cuts = sorted(chance.randint(0, size) for _ in range(ranks - 1))
    return [slice(*ends) for ends in itertools.pairwise([0, *cuts, size])]


def shares_add_up(objective, seed, ranks, tied=False):
    """Ranks that split groups as they like have the loss and the gradient of one process."""
    values, computed, targets = random_batch(seed)
    values = 3 * (values.round() if tied else values)
    chance = random.Random(seed)
    cuts = [random_cut(chance, size, ranks) for size in values.shape]
    scores = scored(values.requires_grad_(), computed, seed)
    by_rank = list(zip(*cuts, strict=True))
    assert_shares_add_up(objective, scores, targets, by_rank, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seed", range(40))
def test_the_shares_of_all_ranks_add_up(seed, ranks):
    shares_add_up(EqSim(**random_options(seed)), seed, ranks, tied=True)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_a_draw_does_not_depend_on_the_number_of_ranks(seed, ranks, monkeypatch):
    monkeypatch.setattr(true_pairs.torch, "randint", lambda *_: torch.tensor([seed]))
    for objective in (EqSim.released(k=1), EqSim(**{**random_options(seed), "close": "draw"})):
        shares_add_up(objective, seed + 50, ranks)


def test_no_rank_holds_more_than_its_strips(monkeypatch):
    sizes = []  # they grow with own pairs times all pairs, not with all pairs squared
    kept = torch.Tensor.where
    monkeypatch.setattr(torch.Tensor, "where", lambda *a: sizes.append(a[0].numel()) or kept(*a))
    values, targets = torch.randn(16, 16).double(), eye(16)
    cuts = [slice(4 * r, 4 * r + 4) for r in range(4)]
    scores = Scores(values, torch.ones(16, 16) > 0, embedded(values))
    parts(EqSim(k=2), [share_of(scores, targets, cut, cut) for cut in cuts])
    assert sizes
    assert max(sizes) <= 16 * 4


# -- what it means ----------------------------------------------------------------------------


def same(values):
    return Scores.full(values), eye(len(values))


def test_half_precision_is_computed_in_single():
    values = (10 * C).to(torch.bfloat16).requires_grad_()
    loss = EqSim()(*same(values))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, EqSim()(*same(values.detach().float())))
    loss.backward()
    assert values.grad.dtype == torch.bfloat16


def test_diagnosis_is_the_deviation_of_close_and_distant_pairs():
    loss = EqSim(**TOP2, normalise="none")
    state = torch.random.get_rng_state()
    got = loss.diagnose(*same(D))
    close = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    deviation = {
        (i, j): 2 * ((D[i, i] - D[j, j]) ** 2 + (D[i, j] - D[j, i]) ** 2).item()
        for i, j in [*close, (0, 3)]
    }
    want = sum(deviation[pair] for pair in close) / 5
    assert got == pytest.approx({"close": want, "distant": deviation[0, 3]})
    assert EqSim.released().diagnose(*same(D)).keys() == {"close"}
    assert torch.random.get_rng_state().equal(state)
    assert loss.diagnose(*same(D[:1, :1].clone())) == {}


# -- draws, presets, errors -------------------------------------------------------------------


def test_draws_follow_the_random_state():
    loss, values = EqSim.released(k=1), torch.randn(8, 8).double()
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(loss(*same(values)).item())
    assert results[0] == results[1] != results[2]
    torch.manual_seed(0)
    loss(*same(values))
    assert loss(*same(values)).item() != results[0]  # the next step draws anew


def test_draws_follow_the_softmax():
    torch.manual_seed(0)
    values = torch.randn(4, 4, generator=torch.Generator().manual_seed(3)).double()
    scores = Scores.full(values)
    pairs = eqsim.TruePairs(ScoreShard(scores, eye(4), scores, eye(4)), ProcessGroup())
    seen, both, twice = torch.zeros(2, 4, 4), torch.zeros(4, 4), 0.0
    for _ in range(600):
        flat = true_pairs.partners(pairs, 0 * values, 0 * values, 1, "union", True)
        twice += (flat[:, 0] == flat[:, 1]).float().mean().item() / 600
        drawn = true_pairs.partners(pairs, values, values, 1, "union", True)
        for direction in range(2):
            seen[direction, range(4), drawn[:, direction]] += 1 / 600
        two = true_pairs.partners(pairs, values, values, 2, "row", True)
        both[torch.arange(4)[:, None], two] += 1 / 600
    p = values.masked_fill(torch.eye(4) > 0, -math.inf).softmax(dim=1)
    # Either as the first of two, or as the second after any other: without replacement.
    after = [
        p[:, j] + sum(p[:, i] * p[:, j] / (1 - p[:, i]) for i in range(4) if i != j)
        for j in range(4)
    ]
    torch.testing.assert_close(both.double(), torch.stack(after, dim=1), atol=0.08, rtol=0)
    for found, logits in zip(seen.double(), (values, values.T), strict=True):
        want = logits.masked_fill(torch.eye(4) > 0, -math.inf).softmax(dim=1)
        torch.testing.assert_close(found, want, atol=0.08, rtol=0)
    assert twice == pytest.approx(1 / 3, abs=0.05)  # one direction does not tell of the other


def test_the_configs_are_the_presets():
    spec = yaml.safe_load((CONFIGS / "plugins/objectives/eqsim.yaml").read_text())
    assert instantiate(spec, Objective).spec() == EqSim.paper().spec() == EqSim().spec()
    for name, preset in (("paper", EqSim.paper()), ("released", EqSim.released())):
        run = yaml.safe_load((CONFIGS / f"experiments/eqsim/{name}.yaml").read_text())
        _, given = run["model"]["objectives"]
        assert instantiate(given, Objective).spec() == preset.spec()
    assert EqSim.paper("all").v1 == "all"
    assert EqSim.released(k=2).k == 2


def test_what_it_needs_and_holds():
    assert EqSim().needs == frozenset()
    assert EqSim(ranked_by="reference").needs == {"reference"}
    with refused("expected v1 or v2 on some pairs"):
        EqSim(v1="none", v2="none")


def test_the_largest_of_single_precision_are_those_of_a_stable_sort():
    torch.manual_seed(0)
    # Few distinct values, so that most are ties; both zeros and both signs.
    keys = torch.randint(-3, 4, (40, 60)).float() * torch.tensor([1.0, -1.0]).repeat(30)
    valid = torch.rand(40, 60) < 0.8
    order = keys.masked_fill(~valid, -torch.inf).argsort(dim=1, descending=True, stable=True)
    assert torch.equal(true_pairs._largest(keys, valid, 8), order[:, :8])
