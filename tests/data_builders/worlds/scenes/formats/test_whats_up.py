from tests.data_builders.conftest import load
from tests.data_builders.worlds.scenes.truth import holds


def test_the_first_of_four_statements_is_true(suite, graphs):
    rows = load(suite / "whats_up/controlled_clevr_dataset.json")
    for k, row in enumerate(rows):
        scene = graphs["placed"][row["image_path"].rpartition("/")[2]]
        truths = [holds(scene, text) for text in row["caption_options"]]
        assert truths == [True, False, False, False]
        # The images of a set have the same four statements.
        first = rows[k - k % 4]
        assert sorted(row["caption_options"]) == sorted(first["caption_options"])
