from pathlib import Path

import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_name, check, drawn, joined, share
from tests.refusals import refused
from vlmtune.benchmarks.files import write_csv
from vlmtune.benchmarks.mmvp_vlm import COLUMNS, MmvpVlm

PATTERNS = ("Orientation and Direction", "Texts", "Color and Appearance")


def write(folder: Path, pairs: int) -> MmvpVlm:
    """So many pairs of each pattern, in the layout of the release; images by number alone."""
    rows = []
    for pattern in PATTERNS:
        for _ in range(2 * pairs):
            number = len(rows) + 1
            touch(folder, f"{number}.jpg")
            rows.append((number, pattern, f"statement {number}"))
    return MmvpVlm(write_csv(folder / "Questions.csv", COLUMNS, rows), str(folder))


def test_against_the_rule_of_the_released_script_without_its_ties(tmp_path):
    pairs = 20
    look = drawn(0, values=5)
    result = write(tmp_path, pairs).run(by_name(look))
    right = {pattern: [] for pattern in PATTERNS}
    for k in range(len(PATTERNS) * pairs):
        one, two = 2 * k + 1, 2 * k + 2
        first, second = f"a photo of statement {one}", f"a photo of statement {two}"
        # Each statement chooses one of the two images, and equal scores choose neither.
        chooses_first = look(f"{one}.jpg", first) > look(f"{two}.jpg", first)
        chooses_second = look(f"{two}.jpg", second) > look(f"{one}.jpg", second)
        right[PATTERNS[k // pairs]].append(chooses_first and chooses_second)
    check(result, {f"accuracy/{pattern}": share(won) for pattern, won in right.items()})
    check(result, {"accuracy": share(joined(right.values()), 0.25)})
    assert result.primary == "accuracy"


def test_images_have_numbers_statements_their_prompt_and_rows_a_partner(tmp_path):
    made = MmvpVlm.fixture(tmp_path)
    names = [image.path.relative_to(made.images).as_posix() for image in made.items.images]
    assert names[:2] == ["Texts/1.jpg", "Texts/2.jpg"]
    assert names[4:] == ["Quantity and Count/5.jpg", "Quantity and Count/6.jpg"]
    assert made.items.texts[0] == "a photo of a sign without words"
    bare = MmvpVlm(made.path, made.images, prompt="{}")
    assert bare.items.texts[0] == "a sign without words"
    assert torch.equal(bare.items.truth, made.items.truth)
    lines = Path(made.path).read_text().splitlines()
    # A lost row, and two lost rows, after which all rows would have another partner.
    for kept in (lines[:-1], [lines[0], *lines[2:5], lines[6]]):
        Path(made.path).write_text("\n".join(kept))
        with refused("two rows a pair"):
            MmvpVlm(made.path, made.images).load()
    Path(made.path).write_text("\n".join([*lines, "7,Texts,a sign, with words"]))
    with refused("fewer or more values"):
        MmvpVlm(made.path, made.images).load()
