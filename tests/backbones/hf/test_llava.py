"""LLaVA asked about one image and one caption, and about two of both."""

from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image

from scripts.experiments.pairwise import log_odds, main, right, side_by_side, table
from tests.backbones.hf_models import pixels, write_llava
from tests.refusals import refused
from vlmtune.backbones.hf.llava import Llava
from vlmtune.benchmarks import PairedItem, Winoground
from vlmtune.types import FeatureSpec, ImageRef

WORDS = FeatureSpec("words")
QUESTION = "USER: <image> are caption 1 {} and caption 2 {} left and right ? ASSISTANT:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_llava(tmp_path_factory.mktemp("llava") / "tiny", room=160))


@pytest.fixture(scope="module")
def model(folder):
    return Llava(folder)


def image(folder, name, colour, size=(40, 30)):
    path = folder / f"{name}.png"
    Image.new("RGB", size, colour).save(path)
    return ImageRef(path)


@pytest.mark.parametrize(
    "prompt", ["{caption}", "<image>", "{caption} <image>", "<image> {caption} {caption}"]
)
def test_a_prompt_of_another_form_is_refused(folder, prompt):
    with refused("a prompt with one <image> and one {caption} after it"):
        Llava(folder, prompt=prompt)


def test_answers_captions_and_questions_that_do_not_fit_are_refused(folder, model):
    for answer in ("Yes please", "nonsense"):  # the latter is unknown to the tokenizer
        with refused("two answers that begin with tokens of their own"):
            Llava(folder, false_answer=answer)
    with refused("a caption without <image>"):
        model.encode_text(["a red <image> cube"], WORDS)
    with refused("at most 160 tokens"):
        model.compare(pixels()[:1], [QUESTION.format("a cube " * 99, "a dog")], ("1", "2"))


def test_features_depend_on_the_prompt(folder, model):
    other = Llava(folder, prompt="USER: <image> is {caption} right ? ASSISTANT:")
    assert other.fingerprint != model.fingerprint
    assert Llava(folder, true_answer="no", false_answer="yes").fingerprint == model.fingerprint


def test_swapped_answers_negate_the_score(folder, model):
    swapped = Llava(folder, true_answer="No", false_answer="Yes")
    scores = []
    for one in (model, swapped):
        image = one.encode_image(pixels(), one.fusion.image_input)
        scores.append(one.fusion.match(image, one.encode_text(["a cube"] * 3, WORDS)))
    torch.testing.assert_close(scores[0], -scores[1])


def test_two_of_both_are_compared_as_the_library_computes(folder, model):
    questions = [QUESTION.format("a cube", "a dog"), QUESTION.format("a dog", "a red cube")]
    got = model.compare(pixels()[:2], questions, ("1", "2"))
    network = transformers.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    one, two = words.convert_tokens_to_ids(["1", "2"])
    for i, question in enumerate(questions):
        ids = words(question.replace("<image>", "<image>" * 16), return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = network(input_ids=ids, pixel_values=pixels()[i : i + 1]).logits[0, -1]
        torch.testing.assert_close(got[i], logits[one] - logits[two], rtol=1e-4, atol=1e-5)


def test_images_stand_side_by_side_in_a_square():
    left, right_one = Image.new("RGB", (20, 10), "red"), Image.new("RGB", (40, 40), "blue")
    joined = side_by_side(left, right_one)
    assert joined.size == (30, 30)
    colours = [joined.getpixel(place) for place in ((0, 15), (19, 15), (20, 15), (29, 15), (5, 2))]
    assert colours == [(255, 0, 0)] * 2 + [(0, 0, 255)] * 2 + [(128, 128, 128)]


def test_a_model_that_repeats_the_order_is_right_in_one_alone():
    odds = torch.tensor([[2.0, -1.0], [2.0, -3.0], [1.0, 0.5], [0.0, 0.0]])
    assert [wins.tolist() for wins in right(odds)] == [
        [True, True, True, False],
        [False, False, True, False],
        [False, False, True, False],
        [True, False, True, False],
    ]
    blank = ImageRef(Path("blank.png"))
    items = [PairedItem((blank, blank), ("a", "b"), group) for group in ("x", "x", "y", "y")]
    lines = table(items, odds).splitlines()
    assert lines[2].startswith("| all | 4 | 75.0 (")
    assert [line.split(" | ")[1] for line in lines[2:-1]] == ["4", "2", "2"]


def test_orders_differ_in_the_captions_alone(model, tmp_path):
    pair = (image(tmp_path, "red", "red"), image(tmp_path, "blue", "blue"))
    odds = log_odds(model, [PairedItem(pair, ("a cube", "a dog"))], QUESTION)[0]
    turned = log_odds(model, [PairedItem(pair, ("a dog", "a cube"))], QUESTION)[0]
    torch.testing.assert_close(odds, -turned.flip(0))


def test_the_command_writes_a_table(folder, tmp_path, capsys):
    made = Winoground.fixture(tmp_path)
    config = tmp_path / "winoground.yaml"
    config.write_text(
        "class_path: vlmtune.benchmarks.winoground.Winoground\n"
        f"init_args: {{path: {made.path}, images: {made.images}}}\n"
    )
    options = ["--model", folder, "--precision", "fp32", "--device", "cpu"]
    main([*options, "--benchmark", str(config), "--out", str(tmp_path / "out")])
    text = (tmp_path / "out/pairwise.md").read_text()
    assert text in capsys.readouterr().out
    assert "| all | 3 |" in text
    with refused("two images and two captions"):
        main([*options, "--benchmark", "valse", "--out", str(tmp_path / "out")])
