import json
from pathlib import Path

from tests.benchmarks.models import check, scorer
from vlmtune.benchmarks.winoground import Winoground


def by_stem(look):
    return scorer(lambda image, text: look(image.path.stem, text))


def test_accuracy_by_tag_unless_a_file_has_none(tmp_path):
    made = Winoground.fixture(tmp_path)
    rows = [json.loads(line) for line in Path(made.path).read_text().splitlines()]
    right = {(row[f"image_{i}"], row[f"caption_{i}"]) for row in rows[:2] for i in (0, 1)}
    result = made.run(by_stem(lambda name, text: float((name, text) in right)))
    of_tags = {"Object": (1.0,), "Relation": (1.0,), "Both": (0.0,), "Symbolic": (0.0,)}
    of_tags["Series"] = (0.5, 2)
    check(result, {f"group_accuracy/{tag}": numbers for tag, numbers in of_tags.items()})
    check(result, {"group_accuracy": (2 / 3,), "image_accuracy/1 main predicate": (1.0,)})
    check(result, {"text_accuracy/2 main predicates": (0.5,)})
    assert result.outcomes == (1.0, 1.0, 0.0)
    bare = [{key: row[key] for key in row if key[:5] in ("image", "capti")} for row in rows]
    Path(made.path).write_text("\n\n".join(map(json.dumps, bare)))
    result = Winoground(made.path, made.images).run(scorer(lambda *_: 0.0))
    kinds = ("text_accuracy", "image_accuracy", "group_accuracy", "group_match")
    assert tuple(result.metrics) == kinds
