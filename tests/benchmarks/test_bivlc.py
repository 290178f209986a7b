import random
from pathlib import Path

import pytest

from tests.benchmarks.models import drawn, scorer
from tests.refusals import refused
from vlmtune.benchmarks.bivlc import BiVLC
from vlmtune.benchmarks.files import write_image
from vlmtune.benchmarks.table_files import write_parquet

KINDS = ("replace_obj", "replace_rel", "replace_att", "swap_att", "swap_obj", "add_obj", "add_att")


def write(folder: Path, kinds: list[str]) -> tuple[BiVLC, list[str]]:
    """Items of the given types, all with the same two images; returns their captions' numbers."""
    cells = []
    for red in (200, 0):
        path = folder / f"{red}.png"
        write_image(path, red, 9, 9)
        cells.append({"bytes": path.read_bytes(), "path": None})
    rows = []
    for number, kind in enumerate(kinds):
        form, part = kind.split("_")
        row = {"image": cells[0], "caption": f"{number} true", "negative_image": cells[1]}
        row |= {"negative_caption": f"{number} false", "type": form, "subtype": part}
        rows.append(row)
    half = len(rows) // 2
    table = folder / "data"
    table.mkdir()
    write_parquet(table / "test-00000-of-00002.parquet", rows[:half])
    write_parquet(table / "test-00001-of-00002.parquet", rows[half:])
    return BiVLC(str(table)), kinds


def by_side(made: BiVLC, look):
    """Scores by `look(item, image, caption)`; image and caption are 0, or 1 for the negative."""
    first = made.read()[0].images[0]

    def score(image, text):
        number, kind = text.split()
        return look(int(number), int(image != first), int(kind == "false"))

    return scorer(score)


def test_against_the_rule_of_the_released_script(tmp_path):
    rng = random.Random(0)
    made, kinds = write(tmp_path, [rng.choice(KINDS) for _ in range(60)])
    look = drawn(1, values=4)
    right = {name: [] for name in ("text", "image", "group", "swap", "swap_att")}
    singles = {name: [] for name in ("ipos_2t", "ineg_2t", "tpos_2i", "tneg_2i")}
    for number, kind in enumerate(kinds):
        s = [[look(number, i, t) for t in (0, 1)] for i in (0, 1)]
        singles["ipos_2t"].append(s[0][0] > s[0][1])
        singles["ineg_2t"].append(s[1][1] > s[1][0])
        singles["tpos_2i"].append(s[0][0] > s[1][0])
        singles["tneg_2i"].append(s[1][1] > s[0][1])
        right["text"].append(singles["ipos_2t"][-1] and singles["ineg_2t"][-1])
        right["image"].append(singles["tpos_2i"][-1] and singles["tneg_2i"][-1])
        right["group"].append(right["text"][-1] and right["image"][-1])
        if kind.startswith("swap"):
            right["swap"].append(right["group"][-1])
        if kind == "swap_att":
            right["swap_att"].append(right["group"][-1])
    metrics = made.run(by_side(made, look)).metrics
    names = {f"{side}_accuracy": right[side] for side in ("text", "image", "group")}
    names |= {f"group_accuracy/{kind}": right[kind] for kind in ("swap", "swap_att")} | singles
    for name, won in names.items():
        assert metrics[name].value == pytest.approx(sum(won) / len(won)), name
    assert {metrics[name].chance for name in singles} == {0.5}


def test_images_are_written_beside_the_table_once(tmp_path):
    made = BiVLC.fixture(tmp_path)
    paths = [image.path for image in made.items.images]
    assert {path.parent for path in paths} == {tmp_path / "images"}
    assert paths[0].read_bytes() == (tmp_path / "made/0_image.png").read_bytes()
    times = [path.stat().st_mtime_ns for path in paths]
    BiVLC(made.path).load()
    assert [path.stat().st_mtime_ns for path in paths] == times
    elsewhere = BiVLC(made.path, images=str(tmp_path / "other"))
    assert elsewhere.items.images[0].path.parent == tmp_path / "other"


def test_a_missing_file_of_the_release_is_an_error(tmp_path):
    made, _ = write(tmp_path, ["swap_att"] * 4)
    Path(made.path, "test-00001-of-00002.parquet").unlink()
    with refused("test-00001-of-00002.parquet"):
        made.load()
