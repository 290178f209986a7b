"""BiVLC's reader against the rule of the released script, and numbers of its authors."""

import random
from pathlib import Path

from tests.benchmarks.models import check, drawn, scorer, share
from tests.refusals import refused
from vlmtune.benchmarks.bivlc import BiVLC, write_parquet
from vlmtune.benchmarks.files import write_image

SWAPS = {"swap_att": 278, "swap_obj": 81}  # items of the release
KINDS = ("replace_obj", "replace_rel", "replace_att", *SWAPS, "add_obj", "add_att")


def write(folder: Path, kinds: list[str]) -> BiVLC:
    """Items of the given types, all with the same two images, in two tables."""
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
    return BiVLC(str(table))


def by_side(made: BiVLC, look):
    """Scores by `look(item, image, caption)`; image and caption are 0, or 1 for the negative."""
    first = made.read()[0].images[0]

    def score(image, text):
        number, kind = text.split()
        return look(int(number), int(image != first), int(kind == "false"))

    return scorer(score)


def test_against_the_rule_of_the_released_script(tmp_path):
    rng = random.Random(0)
    kinds = [rng.choice(KINDS) for _ in range(60)]
    made, look = write(tmp_path, kinds), drawn(1, values=4)
    sides = {side: [] for side in ("text", "image", "group")}
    singles = {name: [] for name in ("ipos_2t", "ineg_2t", "tpos_2i", "tneg_2i")}
    for number in range(60):
        s = [[look(number, i, t) for t in (0, 1)] for i in (0, 1)]
        four = (s[0][0] > s[0][1], s[1][1] > s[1][0], s[0][0] > s[1][0], s[1][1] > s[0][1])
        for wins, won in zip(singles.values(), four, strict=True):
            wins.append(won)
        for side, won in (("text", four[:2]), ("image", four[2:]), ("group", four)):
            sides[side].append(all(won))
    expected = {f"{side}_accuracy": share(wins) for side, wins in sides.items()}
    expected |= {name: share(wins, 0.5) for name, wins in singles.items()}
    for kind in ("swap", "swap_att"):
        own = [won for won, of in zip(sides["group"], kinds, strict=True) if of.startswith(kind)]
        expected[f"group_accuracy/{kind}"] = share(own)
    check(made.run(by_side(made, look)), expected)


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


def test_no_tables_and_a_row_without_an_image_are_told(tmp_path):
    with refused("got none: run `vlmtune download bivlc`"):
        BiVLC(str(tmp_path)).load()
    made = BiVLC.fixture(tmp_path)
    row = {"image": {"bytes": b""}, "caption": "a", "negative_caption": "b"}
    row |= {"negative_image": {"bytes": b"0"}, "type": "swap", "subtype": "att"}
    write_parquet(Path(made.path, "test-00001-of-00002.parquet"), [row])
    with refused("at image/bytes"):
        made.load()
