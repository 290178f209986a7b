from data_builders.worlds.scenes.videos import FPS, FRAMES
from tests.data_builders.conftest import SUITE, load
from tests.data_builders.worlds.scenes.truth import PLURALS


def test_states_hold_before_and_after_the_boundary_only(suite, graphs):
    content = load(suite / "geb/test.json")
    assert len(content) == SUITE["benchmarks"]
    firsts = set()
    for video, (row,) in content.items():
        frames = sorted((suite / "images/geb" / video).iterdir())
        assert len(frames) == FRAMES
        first = row["timestamp"] * FPS + 0.5
        firsts.add(first)
        the, shape = row["subject"].split()
        assert the == "the"
        assert row["status_before"] != row["status_after"]
        assert shape in PLURALS.values()
        for k, frame in enumerate(frames):
            meant = [o for o in graphs["videos"][frame.name]["objects"] if o["shape"] == shape]
            assert len(meant) == 1
            now = "before" if k < first else "after"
            assert row[f"status_{now}"] == f"is {meant[0]['color']}"
        assert len({frame.read_bytes() for frame in frames}) == FRAMES
    assert len(firsts) > 1
