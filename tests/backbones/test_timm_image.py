import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

from tests.backbones.hf_models import pixels, write_timm
from tests.refusals import refused
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.timm_classifier import TimmClassifier, take_classifier
from vlmtune.backbones.timm_image import TimmImage
from vlmtune.model import load
from vlmtune.types import FeatureSpec

POOLED = FeatureSpec("pooled")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_timm(tmp_path_factory.mktemp("timm") / "model")


def random_model(name: str) -> tuple[TimmImage, torch.nn.Module]:
    """The same random weights as a backbone and as a model of timm."""
    backbone, network = TimmImage(name, "random"), timm.create_model(name, num_classes=0).eval()
    network.load_state_dict(backbone.model.state_dict())
    return backbone, network


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("test_vit", 160),  # class token
        ("test_vit3", 160),  # class token, mean of patches
        ("eva02_tiny_patch14_224", 224),  # rotary positions
        ("test_resnet", 160),
        ("test_convnext", 160),
        ("test_efficientnet", 160),
    ],
)
def test_features_are_timms(name, side):
    backbone, network = random_model(name)
    torch.manual_seed(1)
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        want = network(images)
        maps = network.forward_intermediates(images, output_fmt="NCHW", norm=False)[1]
        last = network.forward_intermediates(images, indices=1, output_fmt="NCHW", norm=True)[1]
    torch.testing.assert_close(backbone.encode_image(images, POOLED).values, want, **CLOSE)
    for layer in range(-len(maps), 0):
        got = backbone.encode_image(images, FeatureSpec("tokens", layer)).values
        want = last[-1] if layer == -1 else maps[layer]
        torch.testing.assert_close(got, want.flatten(2).mT, **CLOSE)
    assert backbone.fits(FeatureSpec("tokens", -len(maps) - 1), "image")


@pytest.mark.parametrize("name", ["test_vit3", "test_convnext", "test_efficientnet"])
def test_the_classifier_is_timms(name):
    torch.manual_seed(0)
    backbone = TimmImage(name, "random")
    torch.manual_seed(0)
    network, images = timm.create_model(name).eval(), torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        got = backbone.classify(backbone.encode_image(images, POOLED).values)
        torch.testing.assert_close(got, network(images), **CLOSE)
    assert backbone.labels[:2] == ("n01440764", "n01443537")
    assert len(backbone.labels) == 1000


def test_a_classifier_may_be_a_convolution_a_pair_or_absent():
    convolution = torch.nn.Conv2d(4, 3, 1)
    features = torch.randn(2, 4)
    got = TimmClassifier(convolution, ("a", "b", "c"))(features)
    wanted = features @ convolution.weight[:, :, 0, 0].T + convolution.bias
    torch.testing.assert_close(got, wanted)
    small = {"layers": (1, 1, 1, 1), "embed_dims": (8, 8, 8, 8), "hidden_sizes": (4, 4, 4, 4)}
    network, image = timm.create_model("sequencer2d_s", **small).eval(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        wanted, classifier = network(image), take_classifier(network)
        torch.testing.assert_close(classifier(network(image)), wanted)
    # CrossViT takes the mean of two, VOLO adds scores of its patches.
    without = (("test_vit", 0), ("levit_128s", 1000), ("crossvit_tiny_240", 9), ("volo_d1_224", 9))
    for name, classes in without:
        assert take_classifier(timm.create_model(name, num_classes=classes)) is None


def test_a_network_without_a_final_norm_gives_its_last_stage(tmp_path):
    options = {"embed_dim": 12, "stages": (1, 1, 1, 1), "num_heads": 1, "num_classes": 5}
    network = timm.create_model("hiera_tiny_224", **options).eval()
    save_for_hf(network, tmp_path, model_args=options, safe_serialization=True)
    backbone, images = TimmImage(str(tmp_path)), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        stages = network.forward_intermediates(images, intermediates_only=True)
    got = backbone.encode_image(images, FeatureSpec("tokens", -1)).values
    torch.testing.assert_close(got, stages[-1].flatten(2).mT, **CLOSE)


def test_states_have_the_class_token(folder):
    backbone = TimmImage(str(folder))
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        maps = network.forward_intermediates(
            pixels(), indices=[1], norm=False, output_fmt="NLC", return_prefix_tokens=True
        )[1]
    got = backbone.encode_image(pixels(), FeatureSpec("state", -2)).values
    torch.testing.assert_close(got[:, 1:], maps[0][0], **CLOSE)
    torch.testing.assert_close(got[:, :1], maps[0][1], **CLOSE)


def test_a_file_fills_all_but_the_classifier_and_random_weights_come_by_name_alone(
    folder, tmp_path
):
    network = timm.create_model("test_vit", num_classes=7).eval()
    file = tmp_path / "mine.safetensors"
    save_file({f"module.{k}": v for k, v in network.state_dict().items()}, file)
    backbone = TimmImage("test_vit", str(file))
    images = torch.randn(2, 3, 160, 160)
    network.reset_classifier(0)
    with torch.no_grad():
        torch.testing.assert_close(backbone.encode_image(images, POOLED).values, network(images))
    assert backbone.title == "test_vit (mine.safetensors)"
    assert backbone.weights_file["architecture"] == "test_vit"
    assert backbone.labels == ()
    with refused("a model with a classifier"):
        backbone.classify(torch.zeros(1, 64))
    with refused("expected only the weights of test_vit2 in .*: name the architecture"):
        TimmImage("test_vit2", str(file))
    backbone = TimmImage("test_vit", "random")
    assert backbone.random_weights
    assert backbone.fingerprint == TimmImage("test_vit", "random").fingerprint
    with refused("the tag of weights of test_vit .* or set pretrained to a file or to random"):
        TimmImage("test_vit")
    with refused("the tag of weights of vit_base_patch16_224.*mae"):
        TimmImage("vit_base_patch16_224.nothing")
    with refused("its own weights"):
        TimmImage("hf-hub:someone/model", "random")
    with refused("expected weights in nowhere.pt, got no such file"):
        TimmImage("test_vit", "nowhere.pt")


def test_the_fingerprint_knows_the_pooling(tmp_path):
    made = []
    for pool in ("avg", "max"):
        folder = write_timm(tmp_path / pool, global_pool=pool)
        made.append(TimmImage(str(folder)))
    first, second = (backbone.encode_image(pixels(), POOLED).values for backbone in made)
    assert not torch.allclose(first, second)
    assert made[0].fingerprint != made[1].fingerprint


def test_images_alone_are_embedded_and_texts_are_refused(folder):
    with refused("reads texts, got .*, which only reads images: use it with vlmtune probe"):
        load(f"timm:{folder}")
    with refused("embeddings for texts, got TimmImage .it only reads images"):
        ZeroShot().attach(TimmImage(str(folder)))
    model = load(f"timm:{folder}", texts=False, device="cpu")
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    assert model.encode_image([image]).shape == (1, 24)
    assert model.untrained
    with refused("only reads images"):
        model.score([image], "a dog")
