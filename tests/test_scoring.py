import logging
import multiprocessing
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn

from vlmtune.adapters.base import DualAdapter, JointAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.scoring import Scorer
from vlmtune.types import Features, ImageRef, Reads, Scores

TEXTS = ["red cube", "a blue cube on a red one", "cube", "red cube", "green", "blue"]


class ToyBackbone(Backbone):
    """Linear towers over a 2 x 2 picture and over letters; counts what it encodes."""

    embed_dim, image_width, text_width, image_tokens = 6, 5, 5, 4
    text_special, logit_scale = (0, 0), 4.0
    fingerprint = "toy"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(3, 5), nn.Embedding(128, 5)
        self.project = nn.Linear(5, 6)
        self.drop = nn.Dropout(0.5)
        self.images, self.captions, self.batches = 0, Counter(), []

    def preprocess(self, image):
        pixels = torch.tensor(list(image.resize((2, 2)).tobytes()), dtype=torch.float32)
        return pixels.view(2, 2, 3).permute(2, 0, 1) / 255

    def encode_image(self, pixels, reads):
        self.images += len(pixels)
        self.batches.append(len(pixels))
        tokens = self.drop(self.image(pixels.flatten(2).transpose(1, 2)))
        if reads.kind == "pooled":
            return Features(pooled=self.project(tokens.mean(dim=1)))
        return Features(tokens=tokens, mask=torch.ones(tokens.shape[:2], dtype=torch.bool))

    def encode_text(self, texts, reads):
        self.captions.update(texts)
        lengths = torch.tensor([len(t) for t in texts])
        ids = torch.zeros(len(texts), int(lengths.max()), dtype=torch.long)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = torch.tensor([ord(c) for c in text])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        tokens = self.text(ids) * mask[:, :, None]
        if reads.kind == "pooled":
            return Features(pooled=self.project(tokens.sum(dim=1) / lengths[:, None]))
        return Features(tokens=tokens, mask=mask)


class ToyDual(DualAdapter):
    def __init__(self, kind="pooled", frozen=True):
        super().__init__()
        self.image_reads = self.text_reads = Reads(kind, frozen=frozen)

    def embed_image(self, image):
        return image.pooled if image.pooled is not None else image.tokens.mean(dim=1)

    def embed_text(self, text):
        if text.pooled is not None:
            return text.pooled
        return text.tokens.sum(dim=1) / text.mask.sum(dim=1, keepdim=True)


class ToyJoint(JointAdapter):
    chunk = 3

    def __init__(self, frozen=True):
        super().__init__()
        self.image_reads = self.text_reads = Reads("tokens", -2, frozen=frozen)
        self.pairs = 0

    def prepare_image(self, image):
        return image

    def prepare_text(self, text):
        return text

    def score_pairs(self, image, text):
        self.pairs += len(image)
        attention = (image.tokens @ text.tokens.transpose(1, 2)).tanh()
        return (attention * text.mask[:, None]).sum(dim=(1, 2))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def images(tmp_path):
    """Seven pictures: five files, one of them a copy of another, one a part of a file."""
    refs = []
    for i, colour in enumerate(["red", "blue", "green", "white"]):
        path = tmp_path / f"{i}.png"
        picture = Image.new("RGB", (8, 8), colour)
        picture.putpixel((0, 0), (10, 20, 30))
        picture.save(path)
        refs.append(ImageRef(path))
    copy = tmp_path / "copy.png"
    copy.write_bytes((tmp_path / "1.png").read_bytes())
    return [*refs, ImageRef(copy), ImageRef(refs[0].path, (0, 0, 4, 4)), refs[2]]


def made(adapter):
    backbone = ToyBackbone()
    adapter.attach(backbone)
    return backbone, adapter


def naive(backbone, adapter, images, texts):
    """Every pair encoded and scored on its own."""
    backbone.eval()
    values = torch.zeros(len(images), len(texts))
    for i, ref in enumerate(images):
        picture = Image.open(ref.path).convert("RGB")
        if ref.box:
            x, y, w, h = ref.box
            picture = picture.crop((x, y, x + w, y + h))
        image = backbone.encode_image(backbone.preprocess(picture)[None], adapter.image_reads)
        for j, text in enumerate(texts):
            feature = backbone.encode_text([text], adapter.text_reads)
            values[i, j] = adapter(image, feature).values.item()
    return values


ADAPTERS = {
    "dual": ToyDual,
    "dual on tokens": lambda: ToyDual("tokens"),
    "dual, live": lambda: ToyDual(frozen=False),
    "joint": ToyJoint,
    "joint, live": lambda: ToyJoint(frozen=False),
}


@pytest.mark.parametrize("batch_size", [1, 2, 256])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
def test_scores_equal_the_double_loop(images, tmp_path, make, stored, batch_size):
    backbone, adapter = made(make())
    want = naive(backbone, adapter, images, TEXTS)
    score = Scorer(backbone, adapter, tmp_path / "store" if stored else None, batch_size)
    got = score(images, TEXTS)
    assert got.computed.all()
    assert got.values.dtype == torch.float32
    torch.testing.assert_close(got.values, want)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
def test_each_image_and_each_caption_is_encoded_once(images, tmp_path, make, stored):
    backbone, adapter = made(make())
    score = Scorer(backbone, adapter, tmp_path / "store" if stored else None, batch_size=2)
    first = score(images, TEXTS)
    assert backbone.images == 5  # a copy and a repetition do not count
    assert backbone.captions == dict.fromkeys(set(TEXTS), 1)
    assert max(backbone.batches) == 2
    again = score(images, TEXTS)
    assert again.values.equal(first.values)
    calls = 1 if adapter.image_reads.frozen else 2
    assert backbone.images == 5 * calls
    assert backbone.captions == dict.fromkeys(set(TEXTS), calls)


def test_memory_serves_other_calls(images):
    backbone, adapter = made(ToyDual())
    score = Scorer(backbone, adapter)
    score(images[:2], TEXTS[:2])
    score(images[1:4], TEXTS[1:3])
    assert backbone.images == 4
    assert backbone.captions == dict.fromkeys(TEXTS[:3], 1)


def test_a_store_serves_other_processes(images, tmp_path):
    backbone, adapter = made(ToyJoint())
    first = Scorer(backbone, adapter, tmp_path / "store")(images, TEXTS)
    other, adapter = made(ToyJoint())
    again = Scorer(other, adapter, tmp_path / "store")(images[::-1], TEXTS)
    torch.testing.assert_close(again.values.flip(0), first.values)
    assert (other.images, sum(other.captions.values())) == (0, 0)


def test_half_precision_store(images, tmp_path):
    backbone, adapter = made(ToyDual())
    full = Scorer(backbone, adapter)(images, TEXTS).values
    half = Scorer(backbone, adapter, tmp_path, dtype="float16")(images, TEXTS).values
    assert not half.equal(full)
    torch.testing.assert_close(half, full, atol=0.01, rtol=0.01)


@pytest.mark.parametrize("batch_size", [1, 2, 256])
def test_a_joint_adapter_scores_the_needed_pairs_only(images, batch_size):
    backbone, adapter = made(ToyJoint())
    want = naive(backbone, adapter, images, TEXTS)
    pairs = torch.zeros(len(images), len(TEXTS), dtype=torch.bool)
    pairs[0, 0] = pairs[1, 3] = pairs[4, 2] = pairs[6, 5] = True  # 0 and 3 are one caption
    adapter.pairs = 0
    got = Scorer(backbone, adapter, batch_size=batch_size)(images, TEXTS, pairs)
    assert adapter.pairs == 4
    assert got.computed[pairs].all()
    torch.testing.assert_close(got.values[got.computed], want[got.computed])
    assert not got.values[~got.computed].any()
    assert backbone.captions["green"] == len(images)  # by the double loop; nobody else asked


def test_no_pairs_encode_nothing(images):
    backbone, adapter = made(ToyJoint())
    got = Scorer(backbone, adapter)(images, TEXTS, torch.zeros(7, 6, dtype=torch.bool))
    assert not got.computed.any()
    assert got.values.shape == (7, 6)
    assert backbone.images == 0


def test_nothing_to_score():
    score = Scorer(*made(ToyDual()))
    assert score([], TEXTS).values.shape == (0, 6)
    assert score([], []).values.shape == (0, 0)


def test_an_adapter_with_a_forward_of_its_own_is_respected(images):
    class Shifted(ToyDual):
        def forward(self, image, text, pairs=None):
            scores = super().forward(image, text, pairs)
            return Scores(scores.values + 7, scores.computed)

    plain = Scorer(*made(ToyDual()))(images, TEXTS).values
    shifted = Scorer(*made(Shifted()), batch_size=2)(images, TEXTS).values
    torch.testing.assert_close(shifted, plain + 7)


def test_modes_are_restored_and_no_graph_is_built(images):
    backbone, adapter = made(ToyDual(frozen=False))
    backbone.train()
    backbone.text.eval()
    adapter.train()
    score = Scorer(backbone, adapter)
    got = score(images, TEXTS)
    assert not got.values.requires_grad
    assert got.values.equal(score(images, TEXTS).values)  # dropout was off
    assert (backbone.training, backbone.drop.training, backbone.text.training) == (
        True,
        True,
        False,
    )
    assert adapter.training
    assert torch.is_grad_enabled()


def test_modes_are_restored_after_an_error(images, tmp_path):
    backbone, adapter = made(ToyDual())
    backbone.train()
    with pytest.raises(UserError, match="nowhere"):
        Scorer(backbone, adapter)([*images, ImageRef(tmp_path / "nowhere.png")], TEXTS)
    assert backbone.training


def test_features_in_the_given_order(images, tmp_path):
    for store in (None, tmp_path / "store"):
        backbone, adapter = made(ToyJoint())
        score = Scorer(backbone, adapter, store, batch_size=2)
        picture = Image.open(images[3].path)
        got = score.image_features([images[3], images[0], picture])
        assert got.tokens.shape == (3, 4, 5)
        torch.testing.assert_close(got.tokens[2], got.tokens[0])
        with torch.no_grad():
            texts = ["cube", "red cube", "cube"]
            want = backbone.encode_text(texts, adapter.text_reads)
            pixels = backbone.preprocess(picture.convert("RGB"))[None]
            image = backbone.eval().encode_image(pixels, adapter.image_reads)
        torch.testing.assert_close(got.tokens[0], image.tokens[0])
        text = score.text_features(texts)
        torch.testing.assert_close(text.tokens, want.tokens)
        assert text.mask.equal(want.mask)


def test_pictures_are_told_apart_by_content():
    backbone, adapter = made(ToyDual())
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    got = Scorer(backbone, adapter)([red, blue, red.copy()], TEXTS)
    assert backbone.images == 2
    assert got.values[0].equal(got.values[2])
    assert not got.values[0].equal(got.values[1])


def test_a_file_that_changes_is_encoded_again(images):
    backbone, adapter = made(ToyDual())
    score = Scorer(backbone, adapter)
    before = score(images[:1], TEXTS).values
    Image.new("RGB", (9, 9), "yellow").save(images[0].path)
    assert not score(images[:1], TEXTS).values.equal(before)


def test_bad_arguments_are_told():
    backbone, adapter = made(ToyDual())
    with pytest.raises(UserError, match="batch_size"):
        Scorer(backbone, adapter, batch_size=0)
    with pytest.raises((UserError, TypeError), match="int8"):
        Scorer(backbone, adapter, dtype="int8")
    with pytest.raises((ValueError, TypeError), match="pairs"):
        Scorer(backbone, adapter)([], TEXTS, torch.ones(2, 2, dtype=torch.bool))


def _rank(rank, folder, refs, stored, missing, results):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        out = []
        for adapter in (ToyDual(), ToyJoint()):
            backbone, adapter = made(adapter)
            score = Scorer(backbone, adapter, folder / "store" if stored else None, batch_size=2)
            if missing and rank == 1:
                refs = [*refs[:-1], ImageRef(folder / "nowhere.png")]
            try:
                out.append((score(refs, TEXTS).values.tolist(), backbone.images))
            except UserError as error:
                out.append(str(error))
        results.put((rank, out))
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("stored", "missing"), [(False, False), (True, False), (False, True)])
def test_two_ranks(images, tmp_path, stored, missing):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    arguments = (tmp_path, images, stored, missing, results)
    ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    got = dict(results.get(timeout=30) for _ in ranks)
    for process in ranks:
        process.join(10)
    if missing:
        assert all("expected scores of rank 1" in text for text in got[0])
        assert all("expected an image in" in text for text in got[1])
        return
    for i, adapter in enumerate((ToyDual(), ToyJoint())):
        want = Scorer(*made(adapter))(images, TEXTS).values
        for rank in range(2):
            torch.testing.assert_close(torch.tensor(got[rank][i][0]), want)
        assert got[0][i][1] + got[1][i][1] == 5
