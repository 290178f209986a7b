"""Video boundary grounding: between which frames does what happens turn into something else?

Files: GEB+'s annotations, `{video: [{"boundary_id", "timestamp", "subject", "status_before",
"status_after", ...}]}` with times in seconds, and a folder for each video with its frames, numbered
without gaps in the order of time, as `ffmpeg -i <video>.mp4 -vf fps=5 <video>/%05d.jpg` writes
them. Sources: Wang et al. 2023, EqBen, appendix A.6 (the task and its score); Wang et al. 2022,
GEB+ (annotations and thresholds).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention, check_images, distinct_pairs
from vlmtune.benchmarks.boundary_files import (
    Boundary,
    check_template,
    read_boundaries,
    read_frames,
)
from vlmtune.benchmarks.repeats import Item
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

THRESHOLDS = (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
ROUNDING = 1e-6  # seconds: 0.7 - 0.6 is not less than 0.1
SHOWN = 4  # right and wrong predictions each in the gallery


@dataclass(frozen=True)
class _Items:
    """n queries with K candidates in all, those of a query side by side.

    Attributes:
        queries: The boundaries.
        images: The N frames of their videos.
        texts: The M captions.
        pairs: The distinct pairs to score.
        query: Of each candidate the number of its query.
        first: Of each candidate its first frame; the second is the next.
        places: Of each candidate the pairs of first frame and T1, of second frame and T2.
        states: Whether T1 is true of the first frame, and T2 of the second.
        distance: Seconds from each candidate to the nearest time that counts as right.
        clusters: The video of each query.
    """

    queries: tuple[Boundary, ...]
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    pairs: Int[Tensor, "P 2"]
    query: Int[Tensor, "K"]
    first: Int[Tensor, "K"]
    places: Int[Tensor, "2 K"]
    states: Bool[Tensor, "2 K"]
    distance: Float[Tensor, "K"]
    clusters: Int[Tensor, "n"]


class BoundaryGrounding(Benchmark):
    """How near the boundary is predicted to where it is, from a caption of each side of it.

    A candidate is a pair of adjacent frames of the video. It scores `s_bg = s(I_t, T1) + s(I_t+1,
    T2)`, T1 and T2 being what is so before and after, and the best one is the prediction.
    `accuracy@0.5` is the share of queries whose prediction is less than 0.5 s off;
    `mean_accuracy` the mean over the thresholds. Chance is that of a candidate drawn at random, and
    high: videos are short. No candidate may be nearer than half a frame's time, so at 5 frames a
    second `accuracy@0.1` cannot reach 1. Intervals resample videos.

    The paper names neither its split nor its wording; what it leaves open is an argument. Its
    thresholds come from GEB+, whose script predicts several boundaries and gives their F1, but a
    number of them that it draws at random for a whole run; with one prediction, as here, that is
    the accuracy.

    Conventions differ in ties: of candidates that score best, "strict" takes the farthest from the
    truth, "reference" the first, as argmax does.

    Args:
        path: GEB+'s annotations of one split.
        frames: The folder with a folder of frames for each video.
        name: Name in reports.
        fps: Frames a second; frame k (from 0) is at k / fps.
        before: Template of T1; it may name subject, status_before, status_after, action_of_cause
            and label.
        after: Template of T2.
        time: Where a candidate lies: at its "first" or "second" frame, or in the "middle".
        inclusive: Whether a prediction exactly as far off as the threshold is right (GEB+: no).
        repeated: Of boundaries of one video with the same captions, which a model cannot tell
            apart, "any" is right for each of them, or only its "own".
        thresholds: In seconds.
        convention: See above.
        limit: Evaluate at most so many boundaries.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: An argument is none of its values.
    """

    version: ClassVar[str] = "1"
    primary: str = "mean_accuracy"
    citation: ClassVar[str] = "Wang et al. 2023, EqBen, appendix A.6 and table 12"
    source: ClassVar[str] = "github.com/Yuxuan-W/GEB-Plus (datasets/annotations; videos: Kinetics)"
    partial_credit: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        frames: str,
        name: str = "boundary_grounding",
        fps: float = 5.0,
        before: str = "{subject} {status_before}",
        after: str = "{subject} {status_after}",
        time: Literal["first", "middle", "second"] = "middle",
        inclusive: bool = False,
        repeated: Literal["any", "own"] = "any",
        thresholds: Sequence[float] = THRESHOLDS,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        for value, known in (
            (time, ("first", "middle", "second")),
            (repeated, ("any", "own")),
            (convention, ("strict", "reference")),
        ):
            if value not in known:
                raise UserError(f"expected one of {known}, got {value!r}: choose one")
        if not fps > 0 or not thresholds or not min(thresholds) > 0:
            raise UserError(
                f"expected fps and thresholds above 0, got {fps} and {list(thresholds)}: raise them"
            )
        check_template(before)
        check_template(after)
        check_limit(limit)
        self.path, self.folder, self.name, self.fps = Path(path), Path(frames), name, fps
        self.before, self.after = before, after
        self.shift = {"first": 0.0, "middle": 0.5, "second": 1.0}[time] / fps
        self.inclusive, self.repeated = inclusive, repeated
        self.thresholds = tuple(sorted(set(thresholds)))
        self.convention: Convention = convention
        self.limit, self.seed = limit, seed
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "BoundaryGrounding":
        """Two videos, one with two boundaries; none is within 3 s of all candidates."""
        made = {
            "aaaaaaaaaaa": (30, [("aaaaaaaaaaa_0A", 0.28, "a man", "is still", "jumps")]),
            "bbbbbbbbbbb": (
                40,
                [
                    ("bbbbbbbbbbb_0A", 1.51, "a dog", "runs", "sleeps"),
                    ("bbbbbbbbbbb_1B", 6.13, "a dog", "stands", "barks"),
                ],
            ),
        }
        keys = ("boundary_id", "timestamp", "subject", "status_before", "status_after")
        annotations = {}
        for video, (frames, rows) in made.items():
            (folder / "frames" / video).mkdir(parents=True)
            for k in range(frames):
                file = folder / "frames" / video / f"{k + 1:05d}.png"
                Image.new("RGB", (8, 8), (6 * k, len(annotations) * 90, 0)).save(file)
            annotations[video] = [dict(zip(keys, row, strict=True)) for row in rows]
        (folder / "val.json").write_text(json.dumps(annotations), encoding="utf-8")
        return cls(str(folder / "val.json"), str(folder / "frames"))

    def load(self) -> None:
        """Reads the annotations and finds the frames; calling it again does nothing.

        Raises:
            UserError: The file is not what it should be, a video has fewer than two frames or gaps
                between them, or ends before one of its boundaries.
        """
        if self._items is None:
            self._items = self._read()

    def images(self) -> tuple[ImageRef, ...]:
        """The frames, video by video."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"]:
        """Frames but the last with what is before, frames but the first with what is after."""
        return self._loaded().pairs

    def truth(self) -> Bool[Tensor, "P"]:
        """What is before is true up to the boundary, what is after from there on."""
        items = self._loaded()
        truth = torch.zeros(len(items.pairs), dtype=torch.bool)
        truth[items.places[items.states]] = True
        return truth

    def compared_items(self) -> tuple[Item, ...]:
        """Each boundary: its captions, and its video, named by the first frame."""
        items = self._loaded()
        frames = _by_query(items.first, items, "amin").tolist()
        found = zip(frames, items.queries, strict=True)
        return tuple(Item((items.images[i],), (one.before, one.after)) for i, one in found)

    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        """Takes the best candidate of each query and measures how far off it is."""
        items = self._loaded()
        values = scores.detach().cpu().double()[items.places]
        chosen = self._chosen(values.sum(dim=0), items)
        n = len(items.queries)
        sizes = torch.bincount(items.query, minlength=n)
        right, chances = [], []
        metrics: dict[str, MetricValue] = {}
        for threshold in self.thresholds:
            near = self._near(items.distance, threshold).double()
            chance = torch.bincount(items.query, weights=near, minlength=n) / sizes
            right.append(near[chosen])
            chances.append(float(chance.mean()))
            metrics[f"accuracy@{threshold:g}"] = cluster_robust_mean(
                right[-1], items.clusters, chances[-1]
            )
        outcomes = torch.stack(right).mean(dim=0)
        mean = cluster_robust_mean(outcomes, items.clusters, sum(chances) / len(chances))
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics={self.primary: mean, **metrics},
            examples=_examples(values, chosen, outcomes, items),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(outcomes.tolist()),
            clusters=tuple(items.clusters.tolist()),
            series={"seconds_off": tuple(items.distance[chosen].tolist())},
        )

    def _near(self, distance: Float[Tensor, "n"], threshold: float) -> Bool[Tensor, "n"]:
        return distance < threshold + (ROUNDING if self.inclusive else -ROUNDING)

    def _chosen(self, values: Float[Tensor, "K"], items: _Items) -> Int[Tensor, "n"]:
        """The candidate that each query predicts."""
        best = _by_query(values, items, "amax")
        tied = values == best[items.query]
        if self.convention == "strict":
            far = torch.where(tied, items.distance, -torch.inf)
            tied = tied & (items.distance == _by_query(far, items, "amax")[items.query])
        places = torch.where(tied, torch.arange(len(values)), len(values))
        return _by_query(places, items, "amin")

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        listed = read_boundaries(self.path, self.before, self.after)
        queries = tuple(listed[i] for i in sample([""] * len(listed), self.limit, self.seed))
        if not queries:
            raise UserError(f"expected boundaries in {self.path}, got none: pass GEB+'s file")
        frames = read_frames(self.folder, queries, self.fps, self.source)
        times: dict[tuple[str, str, str], list[float]] = {}
        for one in listed:
            times.setdefault((one.video, one.before, one.after), []).append(one.time)
        number = {video: i for i, video in enumerate(frames)}
        counts = torch.tensor([len(own) for own in frames.values()])
        starts = counts.cumsum(0) - counts
        captions = dict.fromkeys(text for one in queries for text in (one.before, one.after))
        column = {text: j for j, text in enumerate(captions)}
        parts = []
        for i, one in enumerate(queries):
            video = number[one.video]
            k = torch.arange(int(counts[video]) - 1)
            right = times[one.video, one.before, one.after]
            right = right if self.repeated == "any" else [one.time]
            at = k.double() / self.fps
            off = at[:, None] + self.shift - torch.tensor(right, dtype=torch.float64)
            states = torch.stack([at <= one.time, at + 1 / self.fps > one.time])
            columns = torch.tensor([[column[one.before]], [column[one.after]]]).expand(2, len(k))
            parts.append(
                (torch.full_like(k, i), starts[video] + k, columns, states, off.abs().amin(dim=1))
            )
        query, first, columns, states, distance = (
            torch.cat(part, dim=-1) for part in zip(*parts, strict=True)
        )
        pairs, places = distinct_pairs(torch.stack([first, first + 1]), columns)
        clusters = torch.tensor([number[one.video] for one in queries])
        images = tuple(image for own in frames.values() for image in own)
        check_images(images, self)
        return _Items(
            queries,
            images,
            tuple(captions),
            pairs,
            query,
            first,
            places,
            states,
            distance,
            clusters,
        )


def _by_query(
    values: Float[Tensor, "K"] | Int[Tensor, "K"], items: _Items, how: Literal["amax", "amin"]
) -> Float[Tensor, "n"] | Int[Tensor, "n"]:
    """The largest or smallest value of each query."""
    start = values.new_zeros(len(items.queries))
    return start.scatter_reduce(0, items.query, values, how, include_self=False)


def _examples(
    values: Float[Tensor, "2 K"],
    chosen: Int[Tensor, "n"],
    outcomes: Float[Tensor, "n"],
    items: _Items,
) -> tuple[Example, ...]:
    """The first predictions within all thresholds and the first within none, by video."""
    shown: list[Example] = []
    for correct in (True, False):
        found: dict[int, int] = {}
        for i in (outcomes == float(correct)).nonzero().flatten().tolist():
            found.setdefault(int(items.clusters[i]), i)
        for i in list(found.values())[:SHOWN]:
            own = (items.query == i).nonzero().flatten()
            nearest = int(own[items.distance[own].argmin()])
            candidates = [int(chosen[i])] if correct else [int(chosen[i]), nearest]
            shown.append(
                Example(
                    query=f"{items.queries[i].before} → {items.queries[i].after}",
                    images=tuple(
                        items.images[int(items.first[k]) + side]
                        for k in candidates
                        for side in (0, 1)
                    ),
                    scores=tuple(float(values[side, k]) for k in candidates for side in (0, 1)),
                    true=tuple(correct or k == nearest for k in candidates for _ in (0, 1)),
                    correct=correct,
                )
            )
    return tuple(shown)
