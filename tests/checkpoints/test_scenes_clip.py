"""The shipped backbone knows every word and binds nothing, as its card says."""

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data_builders.worlds.scenes.captions import vocabulary
from data_builders.worlds.scenes.scene import COLORS, SHAPES
from scripts import pretrain_scenes_clip as script
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "checkpoints" / "scenes-clip"


@pytest.fixture(scope="module")
def measured():
    return script.measure(FOLDER, scenes=1000)


def test_knows_words_and_binds_nothing(measured):
    words, binding = measured
    assert words >= 0.95
    assert 0.45 <= binding <= 0.55


def test_card_states_what_is_measured(measured):
    card = (FOLDER / "README.md").read_text()
    stated = [float(x) / 100 for x in re.findall(r"\| ([0-9.]+) % \|", card)]
    assert stated == pytest.approx(measured, abs=0.002)


def test_vocabulary_is_the_worlds():
    assert (FOLDER / "vocabulary.txt").read_text().split() == list(vocabulary())


def test_words_are_added_without_touching_the_others(tmp_path, monkeypatch):
    """New words are learnt alone: captions of old ones keep their embeddings to the last bit."""
    shutil.copytree(FOLDER, tmp_path / "old")
    words = (FOLDER / "vocabulary.txt").read_text().split()
    monkeypatch.setattr(script, "vocabulary", lambda: tuple(sorted([*words, "mauve"])))
    torch.manual_seed(0)
    model = script.CLIP(**script.model_config())
    tokens = script.initialise(model, tmp_path / "old")
    assert [sorted([*words, "mauve"])[token - 2] for token in tokens] == ["mauve"]
    script.only(model, tokens)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = script.WordTokenizer(script.vocabulary(), script.CONTEXT)(["a mauve cube"])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.0)
    model.encode_text(ids).sum().backward()
    optimizer.step()
    after = model.state_dict()
    moved = (before["token_embedding.weight"] != after["token_embedding.weight"]).any(dim=1)
    assert moved.nonzero().flatten().tolist() == tokens
    assert all(torch.equal(before[n], after[n]) for n in before if n != "token_embedding.weight")
    script.save(model, tmp_path / "new")
    captions = ["a red cube and a blue sphere", "two small cylinders on grass"]
    old, new = (
        OpenClip(str(folder)).encode_text(captions, FeatureSpec("pooled")).values
        for folder in (FOLDER, tmp_path / "new")
    )
    assert torch.equal(old, new)


def test_the_class_token_can_be_the_embedding(tmp_path):
    """The saved folder says which token is read; a model of means has the same weights."""
    torch.manual_seed(0)
    for pool, rows in (("avg", slice(1, None)), ("tok", slice(0, 1))):
        model = script.CLIP(**script.model_config(pool)).eval()
        assert script.initialise(model, FOLDER) == []
        script.save(model, tmp_path / pool)
        images = torch.randn(2, 3, script.SIZE, script.SIZE)
        visual = model.visual
        with torch.no_grad():
            tokens = visual.ln_post(visual.transformer(visual._embeds(images)))
            want = tokens[:, rows].mean(dim=1) @ visual.proj
            loaded = OpenClip(str(tmp_path / pool))
            got = loaded.encode_image(images, FeatureSpec("pooled")).values
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert script.model_config() == script.model_config("avg")


def test_bound_captions_are_true_and_name_no_held_out_composition():
    scenes, _ = script._chunk(
        (replace(script.SPECS[1], forbidden=script.HELD_OUT), 7, 0, 40, False)
    )
    rng = random.Random(0)
    pattern = rf"({'|'.join(COLORS)}) (?:metal |rubber )?({'|'.join(SHAPES)})\b"
    named = 0
    for scene in scenes:
        shown = {(o.color, o.shape) for o in scene.objects}
        assert not shown & script.HELD_OUT
        for _ in range(5):
            stated = re.findall(pattern, script.bound_caption(scene, rng))
            named += len(stated)
            assert set(stated) <= shown
    assert named > 200


def test_small_enough_to_ship():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 15e6
