"""EqBen's pairs of frames, from videos whose frames are known and from the embedded world."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_builders.corpora import frame_pairs
from data_builders.corpora.eqben_action_genome import ActionGenomePairs
from data_builders.corpora.eqben_gebc import GebcPairs
from data_builders.corpora.eqben_youcook2 import YouCook2Pairs
from data_builders.corpora.frame_pairs import (
    Moment,
    UnreadableVideoError,
    read_frames,
    shows_face,
)
from data_builders.corpora.table import TableBuilder
from tests.data_builders.conftest import counts_of, dump, groups, load, rows_of
from tests.refusals import refused
from vlmtune.benchmarks.eqben import read_entries

av = pytest.importorskip("av")


def write_video(path: Path, frames: list[np.ndarray], fps: int) -> None:
    """Encodes frames without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=fps)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def shade(k: int) -> np.ndarray:
    return np.full((16, 16, 3), 10 * k, dtype=np.uint8)


def level(image: Image.Image) -> int:
    """Which frame an image is."""
    return round(np.asarray(image).mean() / 10)


@pytest.fixture
def video(tmp_path):
    """Twenty frames, two a second, each with its own shade."""
    path = tmp_path / "videos" / "some" / "cook.mkv"
    write_video(path, [shade(k) for k in range(20)], 2)
    return path


def rows(folder: Path) -> list[dict[str, str]]:
    return rows_of(folder / "pairs.csv")


def names(folder: Path) -> list[str]:
    return [row[key] for row in rows(folder) for key in ("image", "negative_image")]


def test_frames_by_number_and_by_time_and_none_of_a_damaged_video(video, tmp_path):
    numbers = [Moment(number=n) for n in (1, 7, 20)]
    times = [Moment(seconds=s) for s in (0.0, 0.49, 0.5, 3.3, 9.9)]
    frames = read_frames(video, [*numbers, *times])
    assert [level(frames[m]) for m in numbers] == [0, 6, 19]
    assert [level(frames[m]) for m in times] == [0, 0, 1, 6, 19]  # the frame shown at that time
    for late in (Moment(number=21), Moment(seconds=10.6)):
        with pytest.raises(UnreadableVideoError, match="ends before"):
            read_frames(video, [late])
    path = tmp_path / "bad.mp4"
    path.write_bytes(b"no video" * 100)
    with pytest.raises(UnreadableVideoError):
        read_frames(path, [Moment(number=1)])


def test_youcook2(tmp_path, video):
    steps = [([0, 4], "cut the onion"), ([4, 6], "cut the onion"), ([6, 9], "fry it")]
    annotations = [{"segment": s, "id": k, "sentence": t} for k, (s, t) in enumerate(steps)]
    database = {"cook": {"subset": "training", "annotations": annotations},
                "gone": {"subset": "training", "annotations": annotations}}  # fmt: skip
    path = dump(tmp_path / "a.json", {"database": database})
    out = tmp_path / "out"
    YouCook2Pairs(path, tmp_path / "videos", faces=True).build(out, progress=False)
    entries = read_entries(out / "eqbenyoucook2.json")
    assert [entry.texts for entry in entries] == [("cut the onion", "fry it")] * 2
    # Middles at 2, 5 and 7.5 seconds.
    images = [Image.open(out / "images" / name) for entry in entries for name in entry.images]
    assert [level(image) for image in images] == [4, 15, 10, 15]
    assert {entry.part for entry in entries} == {"eqbenyoucook2"}
    assert counts_of(out) == {"pairs": 2, "skipped: video missing": 1}
    built = groups(TableBuilder(out / "pairs.csv", out / "images"))
    assert [group.truth.int().tolist() for group in built] == [[[1, 0], [0, 1]]] * len(built)
    shown = {image.partition(" ")[0] for group in built for image in group.image_ids}
    assert shown == {*names(out)}


def test_frames_with_a_face_are_left_out(tmp_path, video, monkeypatch):
    annotations = [
        {"segment": [k, k + 1], "sentence": text} for k, text in enumerate(["a", "b", "c"])
    ]
    path = dump(tmp_path / "a.json", {"database": {"cook": {"annotations": annotations}}})
    monkeypatch.setattr(frame_pairs, "shows_face", lambda image: level(image) == 3)
    out = tmp_path / "out"
    YouCook2Pairs(path, tmp_path / "videos").build(out, progress=False)
    assert [row["caption"] + row["negative"] for row in rows(out)] == ["ac"]
    assert counts_of(out)["skipped: frame with a face"] == 1


def test_no_face_in_a_plain_image():
    pytest.importorskip("cv2")
    assert not shows_face(Image.new("RGB", (200, 200), "white"))


def test_gebc_skips_a_boundary_and_words_of_motion(tmp_path, video):
    boundaries = [
        {"timestamp": t, "subject": "a man", "status_before": b, "status_after": a}
        for t, b, a in ((2, "sits", "stands"), (4, "stands", "walks up"), (6, "walks", "runs"),
                        (8, "runs", "rests"))
    ]  # fmt: skip
    path = dump(tmp_path / "a.json", {"cook": boundaries[::-1]})
    out = tmp_path / "out"
    GebcPairs(path, tmp_path / "videos").build(out, progress=False)
    # Segments 0-2, 2-4, 4-6, 6-8; the last has no end. Pair 0 -> 2 says "up".
    assert [(row["caption"], row["negative"]) for row in rows(out)] == [
        ("a man stands", "a man runs")
    ]
    entry = read_entries(out / "eqbengebc.json")[0]
    assert [level(Image.open(out / "images" / name)) for name in entry.images] == [6, 14]
    assert counts_of(out) == {
        "pairs": 1,
        "skipped: same caption, or no segment": 1,
        "skipped: word of motion": 1,
    }


def thing(attention, spatial, contacting, visible=True):
    if not visible:
        return {"class": "cup/glass/bottle", "visible": False, "attention_relationship": None,
                "spatial_relationship": None, "contacting_relationship": None}  # fmt: skip
    return {"class": "cup/glass/bottle", "visible": True, "bbox": (0.5, 1, 2, 3),
            "attention_relationship": [attention], "spatial_relationship": [spatial],
            "contacting_relationship": [contacting]}  # fmt: skip


FRAMES_OF = {
    2: thing("looking_at", "in_front_of", "holding"),
    4: thing("looking_at", "in_front_of", "touching"),  # one relation differs
    6: thing("not_looking_at", "behind", "holding"),
    8: thing("not_looking_at", "behind", "holding"),  # the next after a chosen one
    10: thing("not_looking_at", "in_front_of", "not_contacting"),
    12: thing("unsure", "behind", "holding"),
    14: thing("", "", "", visible=False),
}


def genome(folder: Path, suffix: str) -> Path:
    content = {f"cook.mp4/{number:06d}.png": [row] for number, row in FRAMES_OF.items()}
    path = folder / f"objects{suffix}"
    path.write_bytes(pickle.dumps(content) if suffix == ".pkl" else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("suffix", [".pkl", ".json"])
def test_action_genome(tmp_path, video, suffix):
    out = tmp_path / "out"
    ActionGenomePairs(genome(tmp_path, suffix), tmp_path / "videos").build(out, progress=False)
    content = load(out / "eqbenag.json")
    looking = "The person is looking at cup which is in front of him/her."
    away = "The person is not looking at cup which is behind him/her."
    aside = "The person is not looking at cup which is in front of him/her."
    items = content["cook"]["cup/glass/bottle"]
    # Frame 2 with 6 and 10 (8 is skipped); 4, the frame after a chosen one, is skipped; 6 with 10.
    assert [item["caption0"] + item["caption1"] for item in items] == [
        [looking, away],
        [looking, aside],
        [away, aside],
    ]
    entries = read_entries(out / "eqbenag.json")
    first = [level(Image.open(out / "images" / name)) for name in entries[0].images]
    assert first == [1, 5]  # frames 2 and 6, counted from 1
    assert counts_of(out)["skipped: object without a sure relation"] == 1


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_a_pickle_with_code_is_refused(tmp_path, video, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "objects.pkl"
    path.write_bytes(pickle.dumps({"cook.mp4/000001.png": [Harmful()]}))
    with refused("plain values"):
        ActionGenomePairs(path, tmp_path / "videos").build(tmp_path / "out", progress=False)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"{}", pickle.dumps([1]), pickle.dumps({"a": 1})]
)
def test_a_damaged_annotation_file_is_refused(tmp_path, video, content):
    path = tmp_path / "objects.pkl"
    path.write_bytes(content)
    with refused("expected Action Genome's"):
        ActionGenomePairs(path, tmp_path / "videos").build(tmp_path / "out", progress=False)


def test_no_pairs_at_all_is_an_error(tmp_path, video):
    path = dump(tmp_path / "a.json", {"database": {"gone": {"annotations": []}}})
    with refused("expected pairs of frames"):
        YouCook2Pairs(path, tmp_path / "videos").build(tmp_path / "out", progress=False)
