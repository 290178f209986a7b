from tests.data_builders.conftest import rows_of
from tests.data_builders.worlds.scenes.truth import holds


def test_one_of_four_captions_is_true_and_stands_anywhere(suite, graphs):
    rows = rows_of(suite / "negbench/scenes_val_mcq.csv")
    for row in rows:
        scene = graphs["scenes"][row["image_path"].rpartition("/")[2]]
        captions = [row[f"caption_{k}"] for k in range(4)]
        true = [k for k, caption in enumerate(captions) if holds(scene, caption)]
        assert true == [int(row["correct_answer"])]
        negated = " no " in captions[true[0]]
        affirmed = captions[true[0]].startswith(("there is a ", "there is an "))
        template = {(False, True): "positive", (True, False): "negative", (True, True): "hybrid"}
        assert template[negated, affirmed] == row["correct_answer_template"]
    # So a constant scorer, whose argmax is the first caption, does not win.
    assert len({row["correct_answer"] for row in rows}) > 1
    templates = [row["correct_answer_template"] for row in rows]
    assert {templates.count(name) for name in set(templates)} == {len(rows) / 3}
