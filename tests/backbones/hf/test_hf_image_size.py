"""Images of another size than a model of Hugging Face was trained on."""

import copy
import shutil

import pytest
import torch
import transformers
from PIL import Image

from tests.backbones.hf_models import TEXTS, edit
from tests.backbones.kinds import tiny_backbone
from tests.refusals import refused
from vlmtune.adapters import Matching, ZeroShot
from vlmtune.evaluation.scorer import Scorer
from vlmtune.types import FeatureSpec

SIZE = 48  # the tiny models were made for 32, in patches of 8


LIBRARY = {
    "blip": (transformers.BlipForImageTextRetrieval, "vision_model"),
    "blip2": (transformers.Blip2ForImageTextRetrieval, "vision_model"),
    "bridgetower": (transformers.BridgeTowerForImageAndTextRetrieval, "bridgetower.vision_model"),
    "flava": (transformers.FlavaForPreTraining, "flava.image_model"),
    "hf_clip": (transformers.CLIPModel, "vision_model"),
    "metaclip2": (transformers.MetaClip2Model, "vision_model"),
    "siglip": (transformers.SiglipModel, "vision_model"),
}
"""The class that the library has for a model, and the name of its image tower."""
MODELS = [*LIBRARY, "align", "vilt"]
BY_MATCHING = ("blip", "blip2", "bridgetower", "flava", "vilt")


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def plain(name, tmp_path_factory):
    """The model as it was trained, which no test may change."""
    return tiny_backbone(name, tmp_path_factory.mktemp("models") / name)


@pytest.fixture(scope="module")
def folder(plain):
    return plain.spec()["init_args"]["model"]


@pytest.fixture(scope="module")
def make(plain):
    return type(plain)


@pytest.fixture(scope="module")
def large(make, folder):
    """The model for larger images, which no test may change."""
    return make(folder, image_size=SIZE)


@pytest.fixture
def changed(folder, tmp_path):
    """Returns a function that copies the tiny model with another image processor."""

    def write(**values):
        copied = shutil.copytree(folder, tmp_path / "copied")
        return str(edit(copied, "preprocessor_config.json", **values))

    return write


def picture(seed=0):
    torch.manual_seed(seed)
    return Image.fromarray(torch.randint(0, 256, (60, 100, 3), dtype=torch.uint8).numpy())


def tokens(name, backbone, pixels):
    """Its image tokens of the last layer, special ones included."""
    kind = "state" if name != "align" else "tokens"
    return backbone.encode_image(pixels[None], FeatureSpec(kind, -1)).values[0]


@pytest.mark.parametrize("name", LIBRARY, indirect=True)
def test_tokens_are_those_of_the_librarys_interpolation(name, folder, large):
    pixels = large.preprocess(picture())
    assert pixels.shape == (3, SIZE, SIZE)
    kind, tower_name = LIBRARY[name]
    tower = kind.from_pretrained(folder).eval().get_submodule(tower_name)
    got = large.encode_image(pixels[None], FeatureSpec("state", -1)).values[0]
    with torch.no_grad():
        if name == "bridgetower":  # the library's states are after the norm
            got = large.model.bridgetower.vision_model.visual.ln_post(got)
            want = tower(pixels[None], None, True)[-1, 0]
        else:
            options = {"interpolate_pos_encoding": True, "output_hidden_states": True}
            want = tower(pixel_values=pixels[None], **options).hidden_states[-1][0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LIBRARY, indirect=True)
def test_only_positions_change(plain, large):
    before, state = plain.model.state_dict(), large.model.state_dict()
    assert before.keys() == state.keys()
    (changed,) = [key for key in before if not before[key].equal(state[key])]
    assert "position_embedding" in changed
    assert not large.model.training
    assert not any(p.requires_grad for p in large.parameters())


def test_there_are_so_many_tokens_and_finite_scores(name, large, tmp_path):
    large = copy.deepcopy(large)
    # ViLT's longer side is up to 1333 / 800 times as long; ALIGN's maps are 1/8 here.
    assert large.image_tokens == (6 * 9 if name == "vilt" else 6 * 6)
    files = [tmp_path / f"{i}.png" for i in range(2)]
    for i, file in enumerate(files):
        picture(i).save(file)
    adapter = Matching() if name in BY_MATCHING else ZeroShot()
    adapter.attach(large)
    scores = Scorer(large, adapter)(files, TEXTS)
    assert scores.isfinite().all()
    assert scores.std() > 0


def test_it_is_another_model_to_a_store_and_saves_as_one(
    name, make, folder, plain, large, tmp_path
):
    assert large.fingerprint != plain.fingerprint
    assert make(folder, image_size=32).fingerprint == plain.fingerprint
    large.save(tmp_path / "saved")
    again = make(str(tmp_path / "saved"))
    assert again.fingerprint == large.fingerprint
    pixels = large.preprocess(picture())
    assert again.preprocess(picture()).equal(pixels)
    assert tokens(name, again, pixels).equal(tokens(name, large, pixels))


def test_half_precision_loads_too(name, make, folder):
    half = make(folder, image_size=SIZE, precision="bf16")
    assert {p.dtype for n, p in half.model.named_parameters() if "position" in n} <= {
        torch.bfloat16,
        torch.float32,  # the Q-Former's own
    }
    assert tokens(name, half, half.preprocess(picture())).isfinite().all()


def test_a_size_that_does_not_fit_is_refused(name, make, folder):
    step, size = (1, 0) if name == "align" else (8, 50)  # ALIGN has no patches
    with refused(f"multiple of {step}, got {size}"):
        make(folder, image_size=size)


@pytest.mark.parametrize("name", ["bridgetower", "vilt"], indirect=True)
def test_a_size_that_the_processor_would_cut_is_refused(make, changed):
    with refused("multiple of 32, got 48"):
        make(changed(size_divisor=32), image_size=SIZE)


@pytest.mark.parametrize("name", ["blip"], indirect=True)
def test_a_processor_of_no_one_size_is_refused(make, changed):
    with refused("image processor of one image size"):
        make(changed(size={"height": 32, "width": 40}), image_size=SIZE)


@pytest.mark.parametrize("name", ["hf_clip"], indirect=True)
def test_a_crop_keeps_its_share_of_the_image(make, changed):
    processor = make(changed(size={"shortest_edge": 40}), image_size=SIZE).processing[1]
    assert (processor.size.shortest_edge, processor.crop_size.height) == (60, SIZE)
