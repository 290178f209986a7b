import contextlib
from collections import Counter
from itertools import chain

import pytest
import torch
from PIL import Image

from tests.ranks import run_ranks
from tests.refusals import refused
from tests.toy import Toy
from vlmtune.adapters.base import DualAdapter, JointAdapter
from vlmtune.benchmarks.pair_scorer import Embedder
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.types import FeatureSpec, ImageRef, Pooled

TEXTS = ["red cube", "cube", "a blue cube on a red one", "red cube", "green", "blue"]


class ToyBackbone(Toy):
    """A toy that reads pictures and drops out half."""

    def __init__(self):
        super().__init__(dropout=0.5)
        self.float().requires_grad_()

    def preprocess(self, image):
        pixels = torch.tensor(list(image.resize((2, 2)).tobytes()), dtype=torch.float32)
        return pixels.view(2, 2, 3).permute(2, 0, 1) / 255

    @property
    def captions(self):
        """How often each caption was encoded."""
        return Counter(chain.from_iterable(self.texts))


class ToyDual(DualAdapter):
    def __init__(self, kind="pooled", frozen=True):
        super().__init__()
        self.image_input = self.text_input = FeatureSpec(kind, frozen=frozen)

    def embed_image(self, image):
        return image.values if isinstance(image, Pooled) else image.values.mean(dim=1)

    def embed_text(self, text):
        if isinstance(text, Pooled):
            return text.values
        return text.values.sum(dim=1) / text.mask.sum(dim=1, keepdim=True)


class ToyJoint(JointAdapter):
    def __init__(self, frozen=True):
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("tokens", -2, frozen=frozen)
        self.pairs = 0

    def chunk_size(self, *given, **options):
        return 3

    def prepare_image(self, image):
        return image

    def prepare_text(self, text):
        return text

    def score_pairs(self, image, text):
        self.pairs += len(image)
        attention = (image.values @ text.values.transpose(1, 2)).tanh()
        return (attention * text.mask[:, None]).sum(dim=(1, 2))


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
        image = backbone.encode_image(backbone.preprocess(picture)[None], adapter.image_input)
        for j, text in enumerate(texts):
            feature = backbone.encode_text([text], adapter.text_input)
            values[i, j] = adapter(image, feature).values.item()
    return values


ADAPTERS = {
    "dual": ToyDual,
    "dual on tokens": lambda: ToyDual("tokens"),
    "dual, live": lambda: ToyDual(frozen=False),
    "joint": ToyJoint,
    "joint, live": lambda: ToyJoint(frozen=False),
}


@pytest.fixture(params=[False, True], ids=["unstored", "stored"])
def store(request, tmp_path):
    """A folder for features, or none."""
    return tmp_path / "store" if request.param else None


@pytest.fixture(params=ADAPTERS.values(), ids=ADAPTERS)
def make(request):
    return request.param


def test_scores_equal_the_double_loop(images, make, store):
    backbone, adapter = made(make())
    want = naive(backbone, adapter, images, TEXTS)
    # In no order, one of them twice, and 0 and 3 are one caption.
    pairs = torch.tensor([[6, 5], [0, 0], [4, 2], [0, 3], [1, 1], [6, 5], [2, 5]])
    # Those of the pairs first: the store has then some of the features of all.
    got = Scorer(backbone, adapter, store, 2)(images, TEXTS, pairs)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want[tuple(pairs.T)])
    assert (got[0], got[1]) == (got[5], got[3])
    got = Scorer(backbone, adapter, store)(images, TEXTS)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want)


def test_each_image_and_each_caption_is_encoded_once(images, make, store):
    backbone, adapter = made(make())
    score = Scorer(backbone, adapter, store, batch_size=2)
    first = score(images, TEXTS)
    assert sum(backbone.images) == 5  # a copy and a repetition do not count
    assert backbone.captions == dict.fromkeys(set(TEXTS), 1)
    assert max(backbone.images) == 2
    again = score(images, TEXTS)
    assert again.equal(first)
    calls = 1 if adapter.image_input.frozen else 2
    assert sum(backbone.images) == 5 * calls
    assert backbone.captions == dict.fromkeys(set(TEXTS), calls)


@pytest.mark.parametrize("batch_size", [1, 2, 256])
def test_a_joint_adapter_scores_the_needed_pairs_only(images, batch_size):
    backbone, adapter = made(ToyJoint())
    want = naive(backbone, adapter, images, TEXTS)
    pairs = torch.tensor([[0, 0], [1, 3], [4, 2], [6, 5], [4, 0], [2, 5]])
    adapter.pairs = 0
    got = Scorer(backbone, adapter, batch_size=batch_size)(images, TEXTS, pairs)
    assert adapter.pairs == 4  # 1 and 4 show the same, as do 2 and 6, and 0 and 3 say the same
    torch.testing.assert_close(got, want[tuple(pairs.T)])
    assert backbone.captions["green"] == len(images)  # by the double loop; nobody else asked


def test_nothing_to_score_encodes_nothing(images, tmp_path):
    with Scorer(*made(ToyDual()), tmp_path).session([ImageRef(tmp_path / "nowhere.png")], []):
        pass
    assert not list(tmp_path.glob("*/meta.json"))
    score, none = Scorer(*made(ToyDual())), torch.zeros(0, 2, dtype=torch.int64)
    assert score([], TEXTS).shape == (0, 6)
    assert score([], []).shape == (0, 0)
    assert score([], [], none).shape == (0,)
    backbone, adapter = made(ToyJoint())
    assert Scorer(backbone, adapter)(images, TEXTS, none).shape == (0,)
    assert sum(backbone.images) == 0


def test_modes_are_restored_and_no_graph_is_built(images, tmp_path):
    backbone, adapter = made(ToyDual(frozen=False))
    backbone.train()
    backbone.text.eval()
    adapter.train()
    score = Scorer(backbone, adapter)
    got = score(images, TEXTS)
    assert not got.requires_grad
    assert got.equal(score(images, TEXTS))  # dropout was off
    assert backbone.training
    assert backbone.drop.training
    assert not backbone.text.training
    assert adapter.training
    assert torch.is_grad_enabled()
    with refused("nowhere"):
        score([*images, ImageRef(tmp_path / "nowhere.png")], TEXTS)
    assert backbone.training


@pytest.mark.parametrize("frozen", [True, False])
def test_embeddings_in_the_given_order(images, frozen):
    backbone, adapter = made(ToyDual(frozen=frozen))
    want = naive(backbone, adapter, images, TEXTS)
    score = Scorer(backbone, adapter, batch_size=2)
    assert isinstance(score, Embedder)
    for session in (contextlib.nullcontext(), score.session(images, TEXTS)):
        with session:
            image, text = score.embed_images(images), score.embed_texts(TEXTS)
        assert (image.shape, text.shape) == ((7, 6), (6, 6))
        with torch.no_grad():
            torch.testing.assert_close(adapter.compare(image, text), want)
    again = score.embed_images([images[3], Image.open(images[0].path), images[3]])
    torch.testing.assert_close(again, image[[3, 0, 3]])
    assert score.embed_images([]).shape == score.embed_texts([]).shape == (0, 6)
    joint = Scorer(*made(ToyJoint()))  # has none
    for embed in (lambda: joint.embed_images(images), lambda: joint.embed_texts(TEXTS)):
        with refused("got ToyJoint, a joint one"):
            embed()


def test_pictures_are_told_apart_by_content_and_changed_files_encoded_again(images):
    backbone, adapter = made(ToyDual())
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    got = Scorer(backbone, adapter)([red, blue, red.copy()], TEXTS)
    assert sum(backbone.images) == 2
    assert got[0].equal(got[2])
    assert not got[0].equal(got[1])
    backbone, adapter = made(ToyDual())
    score = Scorer(backbone, adapter)
    before = score(images[:1], TEXTS)
    Image.new("RGB", (9, 9), "yellow").save(images[0].path)
    assert not score(images[:1], TEXTS).equal(before)


def test_a_session_encodes_once_for_all_calls(images, make, store):
    backbone, adapter = made(make())
    some, pairs = images[2:5], torch.tensor([[0, 1], [2, 0]])
    want = naive(backbone, adapter, images, TEXTS)
    backbone.images.clear()
    backbone.texts.clear()
    score = Scorer(backbone, adapter, store, batch_size=2)
    with score.session(images, TEXTS):
        one, other = score(some, TEXTS[1:3], pairs), score(images[:2], TEXTS[3:])
        whole = score(images, TEXTS)
    torch.testing.assert_close(one, want[2:5, 1:3][tuple(pairs.T)])
    torch.testing.assert_close(other, want[:2, 3:])
    torch.testing.assert_close(whole, want)
    assert sum(backbone.images) == 5
    assert backbone.captions == dict.fromkeys(set(TEXTS), 1)
    if store is not None:
        assert len(list(store.glob("*/meta.json"))) == (2 if adapter.image_input.frozen else 0)


def test_a_session_ends(images):
    backbone, adapter = made(ToyDual(frozen=False))
    score = Scorer(backbone, adapter)
    with score.session(images, TEXTS):
        before = score(images, TEXTS)
    with torch.no_grad():
        backbone.image.weight.mul_(-1)
    assert not score(images, TEXTS).equal(before)
    assert sum(backbone.images) == 10


def test_what_cannot_be_encoded_fails_the_call_that_needs_it(images, tmp_path, make, store):
    damaged, blank = tmp_path / "damaged.png", "?"
    damaged.write_bytes(b"no image")
    refs = [*images, ImageRef(damaged), ImageRef(tmp_path / "nowhere.png")]
    backbone, adapter = made(make())
    encode = backbone.encode_text

    def strict(texts, reads):
        if blank in texts:
            raise UserError("a caption without words")
        return encode(texts, reads)

    backbone.encode_text = strict
    for _ in range(2):  # once when the store is made, once when it is there
        score = Scorer(backbone, adapter, store, batch_size=4)
        with score.session(refs, [*TEXTS, blank]):
            assert score(images, TEXTS).shape == (7, 6)
            for bad, said in ((refs[-2], "damaged.png"), (refs[-1], "nowhere.png")):
                with refused(said):
                    score([images[0], bad], TEXTS)
            with refused("without words"):
                score(images, [*TEXTS, blank])


@pytest.mark.parametrize("both", [False, True])
def test_a_comparison_of_its_own_is_respected(images, both):
    class Distance(ToyDual):
        def compare(self, image, text):
            return -torch.cdist(image, text)

    class Both(Distance):
        def compare_pairs(self, image, text):
            return -(image - text).norm(dim=1)

    backbone, adapter = made(Both() if both else Distance())
    pairs = torch.tensor([[0, 1], [5, 4], [2, 2]])
    want = naive(backbone, adapter, images, TEXTS)
    got = Scorer(backbone, adapter, batch_size=2)(images, TEXTS, pairs)
    torch.testing.assert_close(got, want[tuple(pairs.T)])


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("base", [ToyDual, ToyJoint])
def test_words_come_with_their_ids(images, tmp_path, base, frozen):
    class Reader(base):
        def __init__(self):
            super().__init__()
            self.text_input = FeatureSpec("words", frozen=frozen)

        def prepare_text(self, text):
            assert text.ids is not None
            assert (text.ids > 0).equal(text.mask)
            return text

        def embed_text(self, text):
            text = self.prepare_text(text)
            return torch.nn.functional.pad(super().embed_text(text), (0, 1))

    backbone, adapter = made(Reader())
    score = Scorer(backbone, adapter, tmp_path / "store", batch_size=2)
    want = naive(backbone, adapter, images, TEXTS)
    with score.session(images, TEXTS):
        torch.testing.assert_close(score(images, TEXTS), want)
    assert not list((tmp_path / "store").glob("text-*"))


SPARSE = [[6, 5], [0, 0], [4, 2], [0, 3], [1, 1], [6, 4], [2, 5], [3, 5], [5, 5]]
CASES = [
    (make, chosen, session)
    for make in (ToyDual, lambda: ToyDual(frozen=False), ToyJoint)
    for chosen, session in ((None, True), (SPARSE, False), (SPARSE, True), (SPARSE[:1], False))
]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_share_the_work(images, tmp_path, store):
    def job(rank):
        out = []
        for number, (make, chosen, session) in enumerate(CASES):
            backbone, adapter = made(make())
            score = Scorer(backbone, adapter, store and store / f"{number}", 2)
            with score.session(images, TEXTS) if session else contextlib.nullcontext():
                values = score(images, TEXTS, chosen and torch.tensor(chosen))
            scored = adapter.pairs if adapter.joint else 0
            out.append((values.tolist(), sum(backbone.images), backbone.captions, scored))
        return out

    given = run_ranks(2, tmp_path / "ranks", job)
    for (make, chosen, session), one, other in zip(CASES, *given, strict=True):
        backbone, adapter = made(make())
        want = Scorer(backbone, adapter)(images, TEXTS, chosen and torch.tensor(chosen))
        assert one[0] == other[0]
        torch.testing.assert_close(torch.tensor(one[0]), want)
        prepared = session and (not adapter.joint or store is not None)
        assert one[1] + other[1] == (5 if prepared else sum(backbone.images))
        if not adapter.joint:  # which encodes a caption on each rank that needs it
            assert one[2] + other[2] == dict.fromkeys(TEXTS, 1) if prepared else backbone.captions
        if adapter.joint:
            assert one[3] + other[3] == adapter.pairs
            if adapter.pairs > 1:
                assert min(one[3], other[3]) > adapter.pairs // 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_fails_on_one_rank_fails_on_all(images, tmp_path):
    def job(rank):
        refs = [*images[:-1], ImageRef(tmp_path / "nowhere.png")] if rank else images
        out = []
        for make in (ToyDual, ToyJoint):
            for session in (False, True):
                score = Scorer(*made(make()), batch_size=2)
                with refused() as error:  # noqa: SIM117
                    with score.session(refs, TEXTS) if session else contextlib.nullcontext():
                        score(refs, TEXTS)
                out.append(str(error.value))
        return out

    one, other = run_ranks(2, tmp_path / "ranks", job)
    assert all("expected a result of rank 1" in text for text in one)
    assert all("expected an image in" in text for text in other)
