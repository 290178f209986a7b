import json

from data_builders.worlds.questions import QuestionsBuilder
from data_builders.worlds.statements import StatementsBuilder
from tests.data_builders.conftest import counts_of, load, read_groups, truths
from tests.refusals import refused


def test_statements_are_those_of_the_questions(world, tmp_path):
    path, images = world / "clevr/scenes_train.json", world / "images/train"
    StatementsBuilder(path, images, per_image=5, seed=2).build(tmp_path / "out", progress=False)
    QuestionsBuilder(path, per_image=5, seed=2).build(tmp_path / "questions", progress=False)
    expected: dict[str, dict[str, bool]] = {}
    for row in load(tmp_path / "questions/questions_train.json")["questions"]:
        texts = expected.setdefault(row["image_filename"].removesuffix(".png"), {})
        texts |= {row["statement"]: True, row["false_statement"]: False}
    found = {group.key: group for group in read_groups(tmp_path / "out")}
    assert {key: truths(group) for key, group in found.items()} == expected
    for group in found.values():
        (true,) = group.true_ids
        assert true == {text for text, yes in expected[group.key].items() if yes}
        assert not group.exhaustive
    counts = counts_of(tmp_path / "out")
    assert counts["statements: true"] == sum(sum(texts.values()) for texts in expected.values())
    total = counts["statements: true"] + counts["statements: false"]
    assert total == sum(map(len, expected.values()))


def test_files_outside_the_images_folder_are_refused(world, tmp_path):
    path = world / "clevr/scenes_val.json"
    content = json.loads(path.read_text())
    content["scenes"][0]["image_filename"] = "../a.png"
    (tmp_path / "scenes.json").write_text(json.dumps(content))
    with refused("image files inside"):
        StatementsBuilder(tmp_path / "scenes.json", tmp_path).build(tmp_path / "x", progress=False)
