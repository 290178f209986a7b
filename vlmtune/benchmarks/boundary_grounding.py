"""Video boundary grounding: finds between which frames the state changes.

In: boundaries with captions, and frames. Out: accuracies by distance in seconds. Never: a guess
between frames that are not adjacent.

Files: GEB+'s annotations, `{video: [{"boundary_id", "timestamp", "subject", "status_before",
"status_after", ...}]}` with times in seconds, and a folder for each video with its frames, numbered
without gaps in the order of time, as `ffmpeg -i <video>.mp4 -vf fps=5 <video>/%05d.jpg` writes
them. Sources: Wang et al. 2023, EqBen, appendix A.6 (the task and its score); Wang et al. 2022,
GEB+ (annotations and thresholds).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, PositiveFloat
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Benchmark, Convention, gallery
from vlmtune.benchmarks.files import Text, write_image, write_json
from vlmtune.benchmarks.items import ComparedItem, Items, distinct_pairs, number, numbered
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.result import Example, Result
from vlmtune.storage.files import read_json
from vlmtune.storage.image_files import image_files
from vlmtune.types import ImageRef

LAYOUT = "JSON `{video: [{timestamp, subject, status_before, status_after, ...}]}`"
LATE = 1.0  # seconds that a boundary may lie after the last frame
THRESHOLDS = (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
ROUNDING = 1e-6  # seconds: 0.7 - 0.6 is not less than 0.1


class _Boundary(TypedDict):
    """A boundary of a video in the file."""

    timestamp: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    subject: str
    status_before: Text
    status_after: Text


@dataclass(frozen=True)
class CaptionedBoundary:
    """A moment of a video, in seconds, with captions of the states before and after it."""

    video: str
    time: float
    before: str
    after: str


def read_boundaries(path: Path) -> list[CaptionedBoundary]:
    """Reads all boundaries in the order of the file."""
    boundaries = []
    videos = read_json(path, LAYOUT, shape=dict[str, list[_Boundary]])
    for video, rows in videos.items():
        for row in rows:
            captions = []
            for status in (row["status_before"], row["status_after"]):
                words = f"{row['subject']} {status}".split()
                captions.append(" ".join(words))
            before, after = captions
            time = float(row["timestamp"])
            boundaries.append(CaptionedBoundary(video, time, before, after))
    return boundaries


def read_frames(
    folder: Path, queries: Sequence[CaptionedBoundary], fps: float, source: str
) -> dict[str, tuple[ImageRef, ...]]:
    """Lists the frames of each video of some boundaries, in the order of their numbers."""
    videos = dict.fromkeys(query.video for query in queries)
    frames = {video: _frames(folder / video) for video in videos}
    short = [video for video, refs in frames.items() if len(refs) < 2]
    if short:
        raise UserError(
            f"expected a folder with frames for each of {len(frames)} videos in {folder}, "
            f"{len(short)} have fewer than two, first {short[0]!r}: extract them from the videos "
            f"({source}), or name another folder by `frames`"
        )
    for query in queries:
        count = len(frames[query.video])
        end = (count - 1) / fps
        if query.time > count / fps + LATE:
            raise UserError(
                f"expected frames of {query.video!r} up to its boundary at {query.time:g} s, got "
                f"{count}, which at {fps:g} a second end at {end:g} s: "
                "set `fps` to the rate they were extracted at, or extract them again"
            )
    return frames


def _frames(folder: Path) -> tuple[ImageRef, ...]:
    if not folder.is_dir():
        return ()
    paths = image_files(folder)
    by_number: dict[int, Path] = {}
    for path in paths:
        digits = re.search(r"\d+$", path.stem)
        if digits:
            by_number[int(digits[0])] = path
    order = sorted(by_number)
    # A frame's number is its time, so a gap would shift all times after it.
    has_gaps = False
    if order:
        span = order[-1] - order[0] + 1
        has_gaps = span != len(order)
    if len(order) != len(paths) or has_gaps:
        raise UserError(
            f"expected frames numbered without gaps in {folder}, got {len(paths)} that are not: "
            "extract them again"
        )
    return tuple(ImageRef(by_number[number]) for number in order)


@dataclass(frozen=True)
class BoundaryQuery:
    """One item: a boundary, and all times of its video with the same captions."""

    boundary: CaptionedBoundary
    times: tuple[float, ...]


@dataclass(frozen=True)
class GroundingItems(Items):
    """n queries with K candidates in all, those of a query side by side."""

    queries: tuple[CaptionedBoundary, ...]
    query: Int[Tensor, "K"]  # of each candidate the number of its query
    first: Int[Tensor, "K"]  # of each candidate its first frame; the second is the next
    # Of each candidate the pairs of first frame and T1, of second frame and T2
    positions: Int[Tensor, "2 K"]
    states: Bool[Tensor, "2 K"]  # whether T1 is true of the first frame, and T2 of the second
    # Seconds from each candidate to the nearest time that counts as right
    distance: Float[Tensor, "K"]

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        return self.positions[self.states]

    def by_query(
        self, values: Float[Tensor, "K"] | Int[Tensor, "K"], how: Literal["amax", "amin"]
    ) -> Float[Tensor, "n"] | Int[Tensor, "n"]:
        """The largest or smallest value of each query."""
        start = values.new_zeros(len(self.queries))
        return start.scatter_reduce(0, self.query, values, how, include_self=False)


class BoundaryGrounding(Benchmark[GroundingItems]):
    """How near the boundary is predicted to where it is, from a caption of each side of it.

    A candidate is a pair of adjacent frames of the video, at the time halfway between them. It
    scores `s_bg = s(I_t, T1) + s(I_t+1, T2)`, T1 and T2 being the captions of before and after, and
    the best one is the prediction. `accuracy@0.5` is the fraction of queries whose prediction is
    less than 0.5 s off; `mean_accuracy` the mean over the thresholds. Chance is that of a candidate
    drawn at random, and high: videos are short. A candidate may be half a frame's time off, so at 5
    frames a second `accuracy@0.1` cannot reach 1. Of boundaries of one video with the same
    captions, which a model cannot tell apart, any is right for each. Intervals count videos.

    The paper names neither its split nor its wording; a caption is the subject and its status, "a
    man is still". Its thresholds come from GEB+, whose script reports the F1 of several
    predictions; with one prediction, as here, that is the accuracy.

    Conventions differ in ties: of candidates that score best, "strict" takes the farthest from the
    truth, "reference" the first, as argmax does.

    Args:
        path: GEB+'s annotations of one split.
        frames: The folder with a folder of frames for each video.
        fps: Frames a second; frame k (from 0) is at k / fps.
    """

    primary_metric = "mean_accuracy"
    full_name = "Video boundaries"
    asks = "changes of an image"
    citation = "Wang et al. 2023, EqBen, appendix A.6 and table 12"
    source = "vlmtune download boundary_grounding"
    partial_credit = True

    path: str
    frames: str
    fps: PositiveFloat = 5.0
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "BoundaryGrounding":
        rows_of = {
            "aaaaaaaaaaa": [("0A", 0.28, "a man", "is still", "jumps")],
            "bbbbbbbbbbb": [
                ("0A", 1.51, "a dog", "runs", "sleeps"),
                ("1B", 6.13, "a dog", "stands", "barks"),
            ],
        }
        keys = ("boundary_id", "timestamp", "subject", "status_before", "status_after")
        annotations = {}
        for i, (video, rows) in enumerate(rows_of.items()):
            for k in range(30 + 10 * i):
                file = f"{k + 1:05d}.png"
                write_image(folder / "frames" / video / file, 6 * k, 90 * i, 0)
            annotations[video] = [dict(zip(keys, row, strict=True)) for row in rows]
        path = write_json(folder / "val.json", annotations)
        return cls(path, str(folder / "frames"))

    @override
    def read(self) -> list[BoundaryQuery]:
        boundaries = read_boundaries(Path(self.path))
        # A model cannot tell apart boundaries of one video with the same captions.
        times: dict[tuple[str, str, str], list[float]] = {}
        for event in boundaries:
            captions_of_video = (event.video, event.before, event.after)
            times.setdefault(captions_of_video, []).append(event.time)
        queries = []
        for event in boundaries:
            right = times[event.video, event.before, event.after]
            queries.append(BoundaryQuery(event, tuple(right)))
        return queries

    @override
    def arrange(self, items: Sequence[BoundaryQuery]) -> GroundingItems:
        boundaries = tuple(item.boundary for item in items)
        frames = read_frames(Path(self.frames), boundaries, self.fps, self.source)
        images = tuple(chain.from_iterable(frames.values()))
        counts = torch.tensor([len(refs) for refs in frames.values()])  # frames of each video
        starts = counts.cumsum(0) - counts
        numbers = number(frames)
        videos = torch.tensor([numbers[event.video] for event in boundaries])
        captions = chain.from_iterable((event.before, event.after) for event in boundaries)
        texts, text_numbers = numbered(captions)

        # The candidates of all queries side by side: the first frame of each, by its number.
        sizes = counts[videos] - 1
        query = torch.arange(len(items)).repeat_interleave(sizes)
        frame = torch.cat([torch.arange(size) for size in sizes.tolist()])
        first = starts[videos][query] + frame
        both_frames = torch.stack([first, first + 1])
        both_captions = text_numbers.view(-1, 2).T[:, query]
        pairs, positions = distinct_pairs(both_frames, both_captions)

        # T1 is true of a frame up to the boundary, T2 of a frame after it.
        first_time = frame.double() / self.fps
        second_time = first_time + 1 / self.fps
        event_times = torch.tensor([event.time for event in boundaries], dtype=torch.float64)
        boundary_time = event_times[query]
        states = torch.stack([first_time <= boundary_time, second_time > boundary_time])
        # A candidate lies halfway between its two frames.
        middle_times = first_time + 0.5 / self.fps
        distances = []
        for item, middle in zip(items, middle_times.split(sizes.tolist()), strict=True):
            right = torch.tensor(item.times, dtype=torch.float64)
            to_each = (middle[:, None] - right).abs()
            # Any boundary with these captions is right, so the nearest counts.
            distances.append(to_each.amin(dim=1))

        compared = []
        for event in boundaries:
            first_frame = frames[event.video][0]  # it names the video
            compared.append(ComparedItem((first_frame,), (event.before, event.after)))
        return GroundingItems(
            images=images,
            texts=texts,
            pairs=pairs,
            clusters=videos,
            compared=tuple(compared),
            queries=boundaries,
            query=query,
            first=first,
            positions=positions,
            states=states,
            distance=torch.cat(distances),
        )

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        values = scores.double()[items.positions]
        chosen = self._chosen(values.sum(dim=0))
        query_count = len(items.queries)
        sizes = torch.bincount(items.query, minlength=query_count)
        right = []
        chances = []
        metrics = {}
        for threshold in THRESHOLDS:
            near = (items.distance < threshold - ROUNDING).double()
            hits = near[chosen]
            # Chance is the fraction of a query's candidates that are near enough.
            near_counts = torch.bincount(items.query, weights=near, minlength=query_count)
            chance = float((near_counts / sizes).mean())
            metric = cluster_robust_mean(hits, items.clusters, chance)
            metrics[f"accuracy@{threshold:g}"] = metric
            right.append(hits)
            chances.append(chance)
        outcomes = torch.stack(right).mean(dim=0)
        mean_chance = sum(chances) / len(chances)
        mean = cluster_robust_mean(outcomes, items.clusters, mean_chance)
        seconds_off = items.distance[chosen].tolist()
        return self.result(
            {self.primary: mean, **metrics},
            outcomes,
            items.clusters,
            examples=self._examples(values, chosen, outcomes),
            series={"seconds_off": tuple(seconds_off)},
        )

    def _chosen(self, values: Float[Tensor, "K"]) -> Int[Tensor, "n"]:
        """The candidate that each query predicts."""
        items = self.items
        best_of_query = items.by_query(values, "amax")
        tied = values == best_of_query[items.query]
        if self.strict:
            # Of tied candidates only the farthest from the truth remain.
            distances = torch.where(tied, items.distance, -torch.inf)
            farthest_of_query = items.by_query(distances, "amax")
            tied &= items.distance == farthest_of_query[items.query]
        # Of the candidates that are left the first, which has the smallest number.
        candidates = torch.where(tied, torch.arange(len(values)), len(values))
        return items.by_query(candidates, "amin")

    def _examples(
        self, values: Float[Tensor, "2 K"], chosen: Int[Tensor, "n"], outcomes: Float[Tensor, "n"]
    ) -> tuple[Example, ...]:
        """The first predictions within all thresholds and the first within none, by video."""
        items = self.items

        def show(number: int) -> Example:
            correct = bool(outcomes[number] == 1)
            # A wrong prediction is shown beside the candidate nearest to the truth.
            rows = (items.query == number).nonzero().flatten()
            nearest = int(rows[items.distance[rows].argmin()])
            candidates = [int(chosen[number])]
            if not correct:
                candidates.append(nearest)
            images = []
            scores = []
            true = []
            for candidate in candidates:
                first = int(items.first[candidate])
                images += items.images[first : first + 2]
                scores += values[:, candidate].tolist()
                true += [correct or candidate == nearest] * 2
            boundary = items.queries[number]
            query = f"{boundary.before} → {boundary.after}"
            return Example(query, tuple(images), tuple(scores), tuple(true), correct)

        # Within some thresholds alone a prediction is neither right nor wrong.
        verdicts = {0.0: False, 1.0: True}
        right = [verdicts.get(outcome) for outcome in outcomes.tolist()]
        return gallery(right, lambda number: int(items.clusters[number]), show)
