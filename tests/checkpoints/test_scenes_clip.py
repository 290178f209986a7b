"""The shipped backbone knows every word and binds nothing, as its card says."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "checkpoints" / "scenes-clip"


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "pretrain_scenes_clip.py"
    spec = importlib.util.spec_from_file_location("pretrain_scenes_clip", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measured(script):
    return script.measure(FOLDER, scenes=1000)


def test_knows_words_and_binds_nothing(measured):
    words, binding = measured
    assert words >= 0.95
    assert 0.45 <= binding <= 0.55


def test_card_states_what_is_measured(measured):
    card = (FOLDER / "README.md").read_text()
    stated = [float(x) / 100 for x in re.findall(r"\| ([0-9.]+) % \|", card)]
    assert stated == pytest.approx(measured, abs=0.002)


def test_other_scenes_say_the_same(script):
    words, binding = script.measure(FOLDER, scenes=600, seed=17)
    assert words >= 0.95
    assert 0.42 <= binding <= 0.58


def test_vocabulary_is_the_worlds():
    from data_builders.scenes.captions import vocabulary

    assert (FOLDER / "vocabulary.txt").read_text().split() == list(vocabulary())


def test_small_enough_to_ship():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 15e6
