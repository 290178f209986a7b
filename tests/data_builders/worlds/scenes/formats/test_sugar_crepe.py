import pytest

from tests.data_builders.conftest import SUITE, load
from tests.data_builders.worlds.scenes.truth import holds
from vlmtune.benchmarks.sugar_crepe import SUBSETS


@pytest.mark.parametrize("subset", SUBSETS)
def test_only_the_caption_is_true(suite, graphs, subset):
    items = load(suite / f"sugar_crepe/{subset}.json")
    assert list(items) == [str(k) for k in range(SUITE["benchmarks"])]
    for item in items.values():
        scene = graphs["scenes"][item["filename"]]
        assert holds(scene, item["caption"]), item
        assert not holds(scene, item["negative_caption"]), item
        before, after = (sorted(item[k].split()) for k in ("caption", "negative_caption"))
        form = subset.partition("_")[0]
        if form == "swap":
            assert before == after
        if form == "add":
            assert not set(before) - set(after)
            assert len(after) > len(before)
        if subset in ("replace_obj", "replace_att"):
            assert len(set(before) - set(after)) <= 1
