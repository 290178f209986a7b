"""The experiment of active choice: which candidates are wrong, which are kept, at equal cost."""

import itertools
import json
import random
import sys

import pytest
import torch

from scripts.experiments import active
from scripts.experiments.active import Pool, candidates, is_wrong, kept, score_all


@pytest.mark.parametrize(
    ("scores", "truth", "wrong"),
    [
        ([[2.0, 1.0], [1.0, 2.0]], [[1, 0], [0, 1]], False),
        ([[2.0, 1.0], [1.0, 1.0]], [[1, 0], [0, 1]], True),  # a tie is wrong
        ([[2.0, 1.0], [2.5, 3.0]], [[1, 0], [0, 1]], True),  # text 0 prefers image 1
        ([[2.0, 2.5], [1.0, 3.0]], [[1, 0], [0, 1]], True),  # image 0 prefers text 1
        ([[5.0, 4.0, 1.0, 2.0], [1.0, 2.0, 4.0, 5.0]], [[1, 1, 0, 0], [0, 0, 1, 1]], False),
        ([[5.0, 1.5, 1.0, 2.0], [1.0, 1.0, 4.0, 5.0]], [[1, 1, 0, 0], [0, 0, 1, 1]], True),
    ],
)
def test_what_is_wrong(scores, truth, wrong):
    assert is_wrong(torch.tensor(scores), torch.tensor(truth) > 0) is wrong


def test_what_is_kept():
    wrong = [i % 5 == 0 for i in range(100)]  # 20 of 100
    rng = random.Random(0)
    chosen, failed = kept(wrong, 15, True, rng)
    assert len(set(chosen)) == failed == 15
    assert all(wrong[i] for i in chosen)
    chosen, failed = kept(wrong, 30, True, rng)  # fewer are wrong than are kept
    assert (len(set(chosen)), failed) == (30, 20)
    total = 0
    for _ in range(300):
        chosen, failed = kept(wrong, 15, False, rng)
        assert len(set(chosen)) == 15
        total += failed
    assert total / 300 == pytest.approx(3.0, abs=0.4)


def test_candidates_are_minimal_changes_of_seen_compositions():
    groups = candidates(0, 1, 20, active.CHANGES)
    assert len(groups) == 20
    assert {group.key.split("_")[0] for group in groups} == set(active.CHANGES)
    for group in groups:
        assert len(group.images) == len(group.image_ids) == 2
        assert group.truth.any(0).all()
        assert (~group.truth).any(1).all()
        held_out = [f"{c} {s}" for c in ("red", "blue") for s in ("cube", "sphere")]
        assert not [text for text in group.texts if any(pair in text for pair in held_out)]
    again, other = (candidates(0, number, 20, active.CHANGES) for number in (1, 2))
    assert [g.texts for g in again] == [g.texts for g in groups] != [g.texts for g in other]


def test_scores_of_each_group_are_its_own():
    groups = candidates(0, 1, 10, active.CHANGES)

    def scorer(images, texts, pairs):
        assert len(images) == 20
        return pairs[:, 0] * 1000.0 + pairs[:, 1]

    row = column = 0
    for scores, group in zip(score_all(scorer, groups), groups, strict=True):
        k, m = group.truth.shape
        expected = (torch.arange(row, row + k) * 1000)[:, None] + torch.arange(column, column + m)
        assert torch.equal(scores, expected.float())
        row, column = row + k, column + m


def test_a_pool_shows_each_group_once_before_any_twice():
    members = candidates(0, 1, 10, active.CHANGES)
    pool = Pool.of(members, 1.0, 3)
    keys = [group.key for start in range(0, 20, 4) for group in pool.groups(0, start, 4)]
    assert sorted(keys[:10]) == sorted(keys[10:]) == sorted(group.key for group in members)
    assert keys[:10] != [group.key for group in pool.groups(1, 0, 10)]


def test_a_round_costs_both_arms_the_same(tmp_path, monkeypatch, capsys):
    """A whole round from the shipped adapter, measured on items of the world that are rendered."""
    from data_builders.worlds.scenes.world import ScenesBuilder

    counts = {name: 0 for name in ("val", "cogent", "ar4t_train")}
    world = ScenesBuilder(train=1, test=1, multi=4, ar4t_test=8, benchmarks=4, **counts)
    world.build(tmp_path / "runs/quickstart/world", progress=False)
    monkeypatch.chdir(tmp_path)
    start = tmp_path / "start.ckpt"
    arm = active.Arm("active", 0, [], 1e-3)
    monkeypatch.setattr(active, "read_checkpoint", lambda path: arm.module)
    words = ["--out", "out", "--start", str(start), "--seeds", "0", "--rounds", "1"]
    sizes = ["--candidates", "20", "--kept", "10", "--captions", "6", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["active", *words, *sizes])
    active.main()
    rows = json.loads((tmp_path / "out/rounds.json").read_text())
    rounds = list(itertools.product((0, 1), active.ARMS))
    assert [(row["round"], row["arm"]) for row in rows] == rounds
    first, second, one, other = rows
    assert {k: first[k] for k in active.REPORTED} == {k: second[k] for k in active.REPORTED}
    # 8 AR4T texts (2 x 4) and 4 of the others (2 x 2) a group, 4 groups of each kind.
    assert one["cost"] == {"rendered": 40, "scored": 4 * (8 + 4 * 4), "kept": 10, "steps": 2}
    assert one["cost"] == other["cost"]
    assert one["wrong by kind"] == other["wrong by kind"]  # the same weights, the same candidates
    assert one["kept wrong"] == min(10, one["wrong"])
    assert (tmp_path / "out/rounds.png").stat().st_size > 1000
    assert "| 1 | uniform |" in capsys.readouterr().out
