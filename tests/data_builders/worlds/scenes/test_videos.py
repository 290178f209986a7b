import random
from collections import Counter

from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.videos import FRAMES, Videos, subject

SPEC = WorldSpec(min_objects=2, max_objects=4)


def videos(series, count):
    for index in range(count):
        samples = (series.attempt(index, random.Random(f"{index}:{n}")) for n in range(400))
        yield index, next(frames for frames in samples if frames)


def test_one_object_changes_its_colour_once():
    series = Videos(SPEC, 1)
    for index, frames in videos(series, 20):
        assert len(frames) == FRAMES
        colors = [scene.objects[0].color for scene in frames]
        changes = [k for k in range(1, FRAMES) if colors[k] != colors[k - 1]]
        assert changes == [series.boundary(index)]
        assert len({scene.objects[1:] for scene in frames}) == 1
        assert len({scene.light_azimuth for scene in frames}) == FRAMES
        assert subject(frames[0]) == subject(frames[-1])


def test_boundaries_are_anywhere():
    series = Videos(SPEC, 2)
    assert set(Counter(series.boundary(k) for k in range(200))) == set(range(1, FRAMES))
