import random

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.json_files import write as write_file
from tests.benchmarks.models import check, drawn, mean, scorer, share
from tests.refusals import refused
from vlmtune.benchmarks.boundary_grounding import (
    THRESHOLDS,
    BoundaryGrounding,
    CaptionedBoundary,
    read_boundaries,
    read_frames,
)
from vlmtune.benchmarks.files import write_json


def write(folder, frames, rows, **more):
    """Videos "v0", "v1", ... of so many frames; rows are (video, time, before, after)."""
    annotations = {}
    for i, count in enumerate(frames):
        touch(folder / f"frames/v{i}", *(f"{k:05d}.png" for k in range(count)))
    for video, time, before, after in rows:
        annotations.setdefault(video, []).append(
            {"timestamp": time, "subject": "", "status_before": before, "status_after": after}
        )
    path = write_json(folder / "val.json", annotations)
    return BoundaryGrounding(str(path), str(folder / "frames"), **more)


def shown(image, text):
    """Video, number of the frame, and caption."""
    return image.path.parent.name, int(image.path.stem), text


def by_table(table):
    return scorer(lambda image, text: table.get(shown(image, text), 0.0))


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(tmp_path, convention, seed):
    rng = random.Random(f"{convention}{seed}")
    frames = (23, 9, 40)
    rows = [
        (f"v{i}", round(rng.uniform(0, (frames[i] - 1) / 5), 2), f"w{rng.randrange(2)}", "then")
        for i in (0, 0, 0, 1, 2, 2, 2, 2)
    ]
    benchmark, look = write(tmp_path, frames, rows, convention=convention), drawn(seed)
    result = benchmark.run(scorer(lambda image, text: look(*shown(image, text))))
    hits = {threshold: [] for threshold in THRESHOLDS}
    chance = {threshold: [] for threshold in THRESHOLDS}
    seconds_off = []
    for video, _, before, after in rows:
        right = [t for v, t, b, a in rows if (v, b, a) == (video, before, after)]
        candidates = []
        for k in range(frames[int(video[1])] - 1):
            score = look(video, k, before) + look(video, k + 1, after)
            at = (k + 0.5) / 5
            candidates.append((score, min(abs(at - t) for t in right)))
        best = max(score for score, _ in candidates)
        tied = [distance for score, distance in candidates if score == best]
        off = max(tied) if convention == "strict" else tied[0]
        seconds_off.append(off)
        for threshold in THRESHOLDS:
            hits[threshold].append(off < threshold - 1e-6)
            near = [distance < threshold - 1e-6 for _, distance in candidates]
            chance[threshold].append(sum(near) / len(near))
    expected = {f"accuracy@{t:g}": share(hits[t], mean(chance[t])) for t in THRESHOLDS}
    every = (mean(map(mean, hits.values())), len(rows), mean(map(mean, chance.values())))
    check(result, {"mean_accuracy": every} | expected)
    assert result.series["seconds_off"] == pytest.approx(tuple(seconds_off))
    assert result.convention == convention
    assert result.clusters == (0, 0, 0, 1, 2, 2, 2, 2)
    assert list(result.metrics) == ["mean_accuracy", *(f"accuracy@{t:g}" for t in THRESHOLDS)]


@pytest.mark.parametrize(("time", "right"), [(0.6, 0.0), (0.61, 1.0), (0.8, 0.0)])
def test_a_distance_equal_to_the_threshold_is_not_below_it(tmp_path, time, right):
    # Frames 3 and 4 lie at 0.6 s and 0.8 s, the candidate at 0.7 s; 0.7 - 0.6 is less than 0.1 in
    # floating point.
    benchmark = write(tmp_path, (30,), [("v0", time, "a", "b")])
    result = benchmark.run(by_table({("v0", 3, "a"): 1.0, ("v0", 4, "b"): 1.0}))
    assert result.metrics["accuracy@0.1"].value == right


def test_examples_show_the_predicted_frames_and_where_it_was_wrong_the_true_ones(tmp_path):
    rows = [("v0", 1.1, "a", "b"), ("v1", 7.1, "a", "b")]
    benchmark = write(tmp_path, (40, 40), rows)
    table = {(v, k, text): 1.0 for v in ("v0", "v1") for k, text in ((5, "a"), (6, "b"))}
    right, wrong = benchmark.run(by_table(table)).examples
    assert (right.query, right.correct, right.true) == ("a → b", True, (True, True))
    assert [image.path.stem for image in right.images] == ["00005", "00006"]
    assert (wrong.correct, wrong.true) == (False, (False, False, True, True))
    assert [image.path.stem for image in wrong.images] == ["00005", "00006", "00035", "00036"]
    assert wrong.scores == (1.0, 1.0, 0.0, 0.0)


def test_reads_times_and_words_captions(tmp_path):
    row = {"timestamp": 2, "subject": "a man", "status_before": "sits", "status_after": "stands"}
    rows = [row, row | {"subject": " ", "action_of_cause": "x"}]
    path = write_file(tmp_path, {"v": rows, "w": []})
    assert read_boundaries(path) == [
        CaptionedBoundary("v", 2.0, "a man sits", "a man stands"),
        CaptionedBoundary("v", 2.0, "sits", "stands"),
    ]


def test_frames_are_in_the_order_of_their_numbers(tmp_path):
    touch(tmp_path / "v", "notes.txt", *(f"frame_{k}.jpg" for k in range(8, 12)))
    query = CaptionedBoundary("v", 0.5, "a", "b")
    (own,) = read_frames(tmp_path, [query, query], 5.0, "somewhere").values()
    assert [frame.path.stem for frame in own] == [f"frame_{k}" for k in range(8, 12)]


@pytest.mark.parametrize(
    "names", [["1.jpg", "3.jpg"], ["1.jpg", "1.png"], ["1.jpg", "b.jpg"], ["1.jpg", "01.jpg"]]
)
def test_gaps_between_frames(tmp_path, names):
    touch(tmp_path / "v", *names)
    with refused("numbered without gaps"):
        read_frames(tmp_path, [CaptionedBoundary("v", 0.1, "a", "b")], 5.0, "somewhere")


def test_videos_without_frames_or_with_too_few_for_their_boundary(tmp_path):
    touch(tmp_path / "v", *(f"{k}.jpg" for k in range(10)))
    queries = [CaptionedBoundary(name, 0.1, "a", "b") for name in "vwx"]
    with refused(r"3 videos .* 2 have fewer than two, first 'w'"):
        read_frames(tmp_path, queries, 5.0, "somewhere")
    with refused(r"its boundary at 9 s, got 10, which at 5 a second end at"):
        read_frames(tmp_path, [CaptionedBoundary("v", 9.0, "a", "b")], 5.0, "somewhere")
    assert read_frames(tmp_path, [CaptionedBoundary("v", 9.0, "a", "b")], 1.0, "somewhere")
