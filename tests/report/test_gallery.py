from dataclasses import replace

import pytest
from PIL import Image

from tests.report.conftest import changed
from vlmtune.report import gallery
from vlmtune.report.gallery import BEST, Gallery
from vlmtune.results.result import Example
from vlmtune.types import ImageRef


@pytest.fixture
def run_of(make_run, tmp_path):
    """Makes a run of one benchmark with examples that are right (True) or wrong."""

    def made(name, verdicts, images=2):
        path = tmp_path / "a.png"
        Image.new("RGB", (4, 4)).save(path)
        examples = tuple(
            Example(str(i), (ImageRef(path),) * images, (1.0,) * images, (True,) * images, right)
            for i, right in enumerate(verdicts)
        )
        return changed(make_run(name), examples=examples)

    return made


def shown(runs):
    groups = Gallery(runs).of("cola_multi", "1", "strict")
    return [[example["query"] for example in group["examples"]] for group in groups]


def test_all_are_shown_if_they_fit_and_else_cut_right_and_wrong_in_turns(run_of, monkeypatch):
    runs = [run_of("a", [True] * 3 + [False] * 3), run_of("b", [])]
    text_only = replace(run_of("c", [True]), text_only=True)
    assert shown([*runs, text_only]) == [["0", "1", "2", "3", "4", "5"]]
    (group,) = Gallery(runs).of("cola_multi", "1", "strict")
    assert (group["right"], group["left_out"], group["many"]) == (3, 0, False)
    assert Gallery(runs).of("cola_multi", "1", "reference") == []
    monkeypatch.setattr(gallery, "PICTURES", 14)
    runs = [run_of("a", [True] * 9 + [False] * 9), run_of("b", [True, True])]
    # b holds 4 of the 14 pictures; the other 10 are 5 of a's examples.
    assert shown(runs) == [["0", "1", "2", "9", "10"], ["0", "1"]]
    assert Gallery(runs).of("cola_multi", "1", "strict")[0]["left_out"] == 13


def test_one_of_each_kind_and_the_best_images_of_a_retrieval_are_shown(run_of, monkeypatch):
    (group,) = Gallery([run_of("a", [True], images=20)]).of("cola_multi", "1", "strict")
    assert len(group["examples"][0]["images"]) == BEST
    assert group["many"]
    monkeypatch.setattr(gallery, "PICTURES", 0)
    assert shown([run_of("a", [True, True, False])]) == [["0", "2"]]
    assert shown([run_of("a", [False, False])]) == [["0"]]
