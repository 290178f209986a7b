"""EqBen's pairs of frames from Action Genome (Wang et al. 2023, appendix B.1).

In: scene graphs of frames, and videos. Out: pairs of frames with captions.
"""

import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import TypedDict, override

from data_builders.corpora.frame_pairs import Clip, FramePair, FramePairs, Moment
from vlmtune.errors import UserError
from vlmtune.storage.files import check_shape, read_json, reading, regular

LAYOUT = "Action Genome's object_bbox_and_relationship.pkl"
_KINDS = ("attention_relationship", "spatial_relationship", "contacting_relationship")
_DIFFERENT = 2  # of the three relations


# An object of a frame; relations are None where it is not visible.
Thing = TypedDict(
    "Thing",
    {
        "class": str,
        "visible": bool,
        "attention_relationship": list[str] | None,
        "spatial_relationship": list[str] | None,
        "contacting_relationship": list[str] | None,
    },
)


class Shown(NamedTuple):
    """An object in a frame: the frame's number, and its relations to the person."""

    frame: int
    relations: tuple[frozenset[str], ...]
    caption: str


class ActionGenomePairs(FramePairs):
    """Frames in which a person has other relations to an object (Eq-AG).

    "The person is <attention> <object> which is <spatial> him/her." Two frames make a pair where at
    least two of the three relations differ; the frame after a chosen one is skipped. Objects whose
    attention is "unsure" are left out. Of several relations of a kind the caption states the first,
    and of several names of an object ("cup/glass/bottle") as well; the paper does not say which.

    `annotations` is `object_bbox_and_relationship.pkl`, or the same content as JSON. The pickle is
    read as plain values; one that names a class or a function is an error. `videos` are those of
    Charades; frame numbers count their frames from 1. `limit` bounds the pairs of an object.
    """

    part = "eqbenag"

    @override
    def clips(self) -> Iterator[Clip]:
        for (video, name), shown in self._shown().items():
            pairs = [
                FramePair(Moment(a.frame), Moment(b.frame), (a.caption, b.caption))
                for a, b in chosen_pairs(shown)
            ]
            if pairs:
                yield Clip(video, tuple(pairs), name)

    def _shown(self) -> dict[tuple[str, str], list[Shown]]:
        """The frames of each object of each video, in order."""
        frames = defaultdict(list)
        for key, things in sorted(self._read().items()):
            video, _, file = key.partition("/")
            number = file.partition(".")[0]
            if not number.isdecimal():
                raise UserError(
                    f"expected frames as VIDEO.mp4/000012.png, got {key!r}: rename it in the "
                    "annotations"
                )
            for thing in things:
                if thing["visible"] and (one := self._one(int(number), thing)):
                    frames[Path(video).stem, thing["class"]].append(one)
        return frames

    def _one(self, frame: int, thing: Mapping[str, Any]) -> Shown | None:
        relations = [thing[kind] for kind in _KINDS]
        if not all(relations) or relations[0][0] == "unsure":
            self.counts["skipped: object without a sure relation"] += 1
            return None
        attention, spatial = (relation[0].replace("_", " ") for relation in relations[:2])
        name = thing["class"].partition("/")[0]
        text = f"The person is {attention} {name} which is {spatial} him/her."
        return Shown(frame, tuple(map(frozenset, relations)), text)

    def _read(self) -> dict[str, list[Any]]:
        path, shape = self.annotations, dict[str, list[Thing]]
        if path.suffix != ".pkl":
            return read_json(path, LAYOUT, shape=shape)
        expected = f"{LAYOUT}, a pickle of plain values,"
        with reading(path, expected), regular(path).open("rb") as file:
            content = _PlainUnpickler(file).load()
        return check_shape(content, shape, path, LAYOUT)

    @override
    def _item(self, images: Sequence[str], captions: Sequence[str]) -> dict[str, Any]:
        return super()._item(images, captions) | {
            f"caption{i}": [caption] for i, caption in enumerate(captions)
        }

    @override
    def _add(self, content: dict[str, Any], clip: Clip, items: list[dict[str, Any]]) -> None:
        content.setdefault(clip.video, {})[clip.subject] = items


def chosen_pairs(shown: Sequence[Shown]) -> Iterator[tuple[Shown, Shown]]:
    """Yields pairs with two other relations or more and another caption.

    The frame after a chosen one is skipped.

    Example:
        >>> near, far = ((frozenset([a]), frozenset([b]), frozenset()) for a, b in ("ab", "cd"))
        >>> frames = [Shown(1, near, "near"), Shown(2, far, "near"), Shown(3, far, "far"),
        ...           Shown(4, far, "far"), Shown(5, far, "far")]
        >>> [(a.frame, b.frame) for a, b in chosen_pairs(frames)]
        [(1, 3), (1, 5)]
    """
    i = 0
    while i < len(shown):
        j, paired = i + 1, False
        while j < len(shown):
            both = zip(shown[i].relations, shown[j].relations, strict=True)
            differ = sum(a != b for a, b in both) >= _DIFFERENT
            chosen = differ and shown[i].caption != shown[j].caption
            if chosen:
                yield shown[i], shown[j]
                paired = True
            j += 2 if chosen else 1
        i += 2 if paired else 1


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts and containers. It imports nothing, so it cannot run code."""

    @override
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
