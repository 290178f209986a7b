"""`published:NAME`: weights that others published, as their sources declare them."""

from pathlib import Path

import pytest
import torch

from tests.refusals import refused
from tests.sources.conftest import declare, empty_folder
from tests.tiny import halves, write_model
from vlmtune.cli.provenance import provenance_of
from vlmtune.model import load
from vlmtune.sources.source import sources

__all__ = ["empty_folder"]  # a fixture
TEXTS = ["a red cube", "a blue sphere"]
HAND = [{"url": "hand:a.pt", "path": "weights/mine/a.pt"}]


@pytest.fixture
def base(tmp_path):
    return str(write_model(tmp_path / "base"))


@pytest.fixture
def images(tmp_path):
    halves("red", "blue").save(tmp_path / "image.png")
    return [tmp_path / "image.png"]


def test_a_folder_of_weights_loads_by_its_name(tmp_path, base, images):
    declare("weights_mine", files=HAND, model={"file": "weights/mine"})
    with refused("no such file: run `vlmtune download weights_mine`"):
        load("published:mine")
    Path("data/weights").mkdir(parents=True)
    write_model(Path("data/weights/mine"))
    model = load("published:mine")
    assert model.score(images, TEXTS).equal(load(base).score(images, TEXTS))
    assert provenance_of(model, "published:mine", None, {}).config["evaluated"] == "published:mine"


@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_a_map_of_text_embeddings_moves_the_texts_alone(base, images, scale):
    declare("weights_mine", files=HAND, model={"file": "weights/mine/a.pt", "text_map_of": base})
    file = Path("data/weights/mine/a.pt")
    file.parent.mkdir(parents=True)
    plain = load(base)
    weight = torch.randn(plain.backbone.embed_dim, plain.backbone.embed_dim)
    torch.save({"linear.weight": weight, "t": torch.tensor(scale)}, file)
    model = load("published:mine")
    image = plain.encode_image(images)
    text = torch.nn.functional.normalize(plain.encode_text(TEXTS) @ weight.T, dim=1)
    assert torch.allclose(model.encode_image(images), image, atol=1e-5)
    assert torch.allclose(model.encode_text(TEXTS), text, atol=1e-5)
    want = torch.tensor(scale).exp() * image @ text.T
    assert torch.allclose(model.score(images, TEXTS), want, atol=1e-4)


@pytest.mark.parametrize(
    "state",
    [
        {"linear.weight": torch.ones(3, 3), "t": torch.ones(())},
        {"linear.weight": torch.ones(16, 16)},
    ],
)
def test_another_file_than_a_map_is_one_line(base, state):
    declare("weights_mine", files=HAND, model={"file": "weights/mine/a.pt", "text_map_of": base})
    file = Path("data/weights/mine/a.pt")
    file.parent.mkdir(parents=True)
    torch.save(state, file)
    with refused("expected linear.weight .16 x 16. and t in"):
        load("published:mine")


def test_an_unknown_name_and_an_option_without_use_are_refused(base):
    declare("weights_mine", files=HAND, model={"file": "weights/mine"})
    Path("data/weights").mkdir(parents=True)
    write_model(Path("data/weights/mine"))
    with refused("revision"):
        load("published:mine", revision="main")
    with refused("expected the name of published weights, got 'published:nobody': .*negclip"):
        load("published:nobody")
    assert "weights_negclip" in sources()
