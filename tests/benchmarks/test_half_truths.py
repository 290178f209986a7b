import json

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import by_text, check, drawn, oracle, share
from vlmtune.benchmarks.half_truths import HalfTruths


def phrase(text):
    subject, relation, thing = text.split("|")
    return {"subject": subject, "relation_type": relation, "object": thing}


def record(name, entities, foils, relations):
    return {
        "sample_id": name,
        "image_path": f"datasets/COCO/val2014/{name}.png",
        "entities": entities,
        "negative_entities": {
            entity: [{"negative": text, "change_type": "object_change"} for text in texts]
            for entity, texts in foils.items()
        },
        "relations": [
            phrase(true) | {"negatives": [phrase(text) for text in false]}
            for true, false in relations.items()
        ],
    }


RECORDS = [
    record(
        "a",
        ["man", "horse", "hat"],
        {"horse": ["cow", "bike"], "man": ["woman"]},
        {"man|riding|horse": ["man|leading|horse", "horse|riding|man"], "man|in|hat": []},
    ),
    record("b", ["dog"], {"dog": ["cat"]}, {}),
]
EXPECTED = [
    ("entity", "horse", "horse and woman"),
    ("entity", "man", "man and cow"),
    ("entity", "man", "man and bike"),
    ("relation", "man", "man leading horse"),
    ("relation", "man", "man and horse riding man"),
]


def written(folder, records):
    touch(folder, "a.png", "b.png")
    return write(folder, records, "units.json")


def test_how_units_become_comparisons(tmp_path):
    benchmark = HalfTruths(str(written(tmp_path, RECORDS)), str(tmp_path))
    made = [(item.group, *item.candidates) for item in benchmark.read()]
    assert made == EXPECTED
    # The half-truth says what the short description says, and more.
    assert all(long.startswith(f"{short} ") for _, short, long in made)


def test_against_the_rule_of_the_released_script(tmp_path):
    rows = [
        {"id": i, "image": "a.png", "triplet_type": kind, "full_truth": f"{i} and {i}"}
        | {"anchor": f"{i}", "half_truth": f"{i} and not {i}"}
        for i, kind in enumerate(["entity", "relation", "relation", "entity", "relation"] * 3)
    ]
    written(tmp_path, [])
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for seed in range(3):
        look = drawn(seed)
        result = HalfTruths(str(path), str(tmp_path)).run(by_text(look))
        for kind in ("entity", "relation", ""):
            own = [row for row in rows if kind in ("", row["triplet_type"])]
            won = [look(row["anchor"]) > look(row["half_truth"]) for row in own]
            check(result, {f"accuracy/{kind}".rstrip("/"): share(won, 0.5)})


def test_a_folder_of_files_and_images_at_their_own_paths(tmp_path):
    folder = tmp_path / "units"
    folder.mkdir()
    for i, one in enumerate(RECORDS):
        write(folder, [one], f"{i}.json")
    place = tmp_path / "datasets/COCO/val2014/a.png"
    touch(tmp_path, place)
    benchmark = HalfTruths(str(folder), str(tmp_path))
    assert benchmark.run(oracle(benchmark)).metrics["accuracy"].n == len(EXPECTED)
    assert [image.path for image in benchmark.items.images] == [place]
