import argparse
from pathlib import Path

import pytest

from tests.refusals import refused
from vlmtune.cli.build import run


@pytest.mark.parametrize(
    ("corpus", "command"),
    [
        ("mine.csv", "vlmtune build table mine.csv --out FOLDER"),
        ("parquet", "vlmtune build table FILE --out FOLDER"),
        ("photos", "vlmtune build folder photos --out FOLDER"),
    ],
)
def test_data_in_the_place_of_a_builder_names_the_builder(corpus, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with refused(f"expected a builder, got '{corpus}': use `{command}`"):
        run(argparse.Namespace(corpus=corpus, config=None, overrides=[], out=Path("out")))


def test_a_folder_with_the_name_of_a_builder_is_no_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").mkdir()
    overrides = ["--path=none.json", "--images=coco"]
    with refused("none.json"):
        run(argparse.Namespace(corpus="coco", config=None, overrides=overrides, out=Path("out")))
