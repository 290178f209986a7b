from collections import Counter

from tests.data_builders.conftest import counts_of, dump, load
from tests.data_builders.worlds.programs.raw_scenes import content, naive, word
from vlmtune.cli.main import main

CLEVRS_KEYS = {"image_index", "program", "question_index", "image_filename",
               "question_family_index", "split", "answer", "question"}  # fmt: skip


def test_the_file_is_one_of_clevrs_and_counts_by_family_and_answer_are_printed(tmp_path, capsys):
    scenes, out = content(25, seed=5), tmp_path / "out"
    path = dump(tmp_path / "CLEVR_val_scenes.json", scenes)
    assert main(["build", "questions", str(path), "--per_image", "10", "--out", str(out)]) == 0
    file = load(out / "questions_val.json")
    assert file["info"]["split"] == "val"
    rows, raw = file["questions"], scenes["scenes"]
    assert len(rows) == 250
    assert [row["question_index"] for row in rows] == list(range(250))
    assert Counter(row["image_index"] for row in rows) == dict.fromkeys(range(25), 10)
    for row in rows:
        assert row.keys() > CLEVRS_KEYS
        assert all(step.keys() == {"function", "inputs", "value_inputs"} for step in row["program"])
        assert 0 <= row["question_family_index"] < 90
        assert word(naive(row["program"], raw[row["image_index"]])) == row["answer"]
        for text in ("question", "statement", "false_statement"):
            assert "  " not in row[text]
    families = {(row["question_family_index"], row["family"]) for row in rows}
    assert len(families) == len({number for number, _ in families})
    printed = capsys.readouterr()
    lines = {line.split()[0]: line for line in printed.err.splitlines() if ":" in line}
    for name, count in Counter(row["family"] for row in rows).items():
        answers = Counter(row["answer"] for row in rows if row["family"] == name)
        assert f" {count}: " in lines[name]
        assert all(f"{answer} {n}" in lines[name] for answer, n in answers.items())
    assert "questions 250" in printed.out
    counts = counts_of(out)
    assert sum(n for name, n in counts.items() if name.startswith("answers ")) == 250
