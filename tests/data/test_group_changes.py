"""What training does to groups is a function of seed, epoch and group, whatever reads them."""

from types import SimpleNamespace

import pytest
import torch
from torchvision.transforms.v2 import ColorJitter, RandomResizedCrop
from torchvision.transforms.v2.functional import pil_to_tensor

from data_builders.shard_builder import ShardBuilder
from tests.data.conftest import png
from tests.refusals import refused
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.joined_images import JoinedImages
from vlmtune.data.shards import ShardSet
from vlmtune.language.caption_edits import ExchangeAttributes, ReplaceWord, SwapNouns
from vlmtune.language.rewriting import Rewriter
from vlmtune.types import Group

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total.*")
COLOURS = ("red", "green", "blue")


class Pairs(ShardBuilder):
    """Nine pairs of images with two captions each, and a caption that is false of both."""

    def records(self):
        for n in range(9):
            one, other = COLOURS[n % 3], COLOURS[(n + 1) % 3]
            pairs = [(one, "cube", "dog"), (other, "sphere", "cube")]
            texts = [f"a {x} {y} left of a {z}" for x, y, z in pairs]
            texts += [f"a {z} right of a {x} {y}" for x, y, z in pairs]
            texts.append("a big horse")
            ids = tuple(f"{n} {text}" for text in texts)
            truth = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0]], dtype=torch.bool)
            true = tuple(frozenset(ids[i:4:2]) for i in (0, 1))
            images = [png(20 * n, (24, 24)), png(20 * n + 9, (24, 24))]
            yield Group(f"r{n}", (f"a{n}", f"b{n}"), ids, tuple(texts), truth, true), images


def negatives() -> CaptionNegatives:
    return CaptionNegatives(Rewriter([SwapNouns(), ExchangeAttributes(), ReplaceWord("ADJ")]), 2)


CHANGES = {
    "captions": lambda: 1,
    "hard_negatives": lambda: "none",
    "negatives": negatives,
    "augmentation": lambda: ColorJitter(brightness=0.9),
    "joined": lambda: JoinedImages(24),
}


@pytest.fixture
def make(tmp_path):
    folder = tmp_path / "shards"
    Pairs(records_per_shard=4).build(folder, progress=False)

    def made(name=None, workers=0) -> ShardDataModule:
        changes = {} if name is None else {name: CHANGES[name]()}
        sets = [ShardSet(str(folder))]
        data = ShardDataModule(sets, 2, sets, num_workers=workers, **changes)
        module = SimpleNamespace(preprocess=lambda image: pil_to_tensor(image).float())
        facts = {"global_rank": 0, "world_size": 1, "training": False}
        data.trainer = SimpleNamespace(lightning_module=module, **facts)
        return data

    return made


def shown(data, epoch, done=0) -> list[tuple]:
    loader = data.train_dataloader()
    loader.position = lambda: (epoch, 2 * done)
    facts = []
    for b in loader:
        targets = b.targets.truth.tolist(), b.targets.same_group.tolist()
        facts.append((b.keys, b.image_ids, b.text_ids, b.texts, targets, b.pixels.tolist()))
    return facts


def read(batches) -> list[set[str]]:
    """The records of each batch; joined ones have a key of both."""
    return [{name for key in batch[0] for name in key.split("+")} for batch in batches]


@pytest.mark.parametrize("name", CHANGES)
def test_a_resumed_epoch_is_changed_in_the_same_way_by_any_number_of_workers(make, name):
    whole, plain = shown(make(name), 1), shown(make(), 1)
    assert read(whole) == read(plain)
    assert all(one != other for one, other in zip(whole, plain, strict=True))
    for workers, done in ((0, 1), (2, 3)):
        assert shown(make(name, workers), 1, done) == whole[done:]


@pytest.mark.parametrize("name", CHANGES)
def test_another_change_is_another_order_of_training_and_leaves_validation_alone(make, name):
    state = make(name).train_dataloader().order()
    make(name).train_dataloader().check_order(state)
    with pytest.warns(UserWarning, match=f"a change of {name}, seed: the rest of this epoch"):
        make().train_dataloader().check_order({**state, "seed": 1})
    data, plain = make(name), make()
    assert data.distinct_texts() == plain.distinct_texts()
    for one, other in zip(data.val_dataloader(), plain.val_dataloader(), strict=True):
        assert (one.image_ids, one.texts) == (other.image_ids, other.texts)
        assert one.pixels.equal(other.pixels)


def test_words_come_from_the_captions_of_training(make):
    data = make("negatives")
    texts = {text for batch in shown(data, 0) for text in batch[3]}
    assert texts - set(data.distinct_texts())
    assert set(data.changes.negatives.rewriter.vocabulary.counts["ADJ colour"]) == set(COLOURS)


@pytest.mark.parametrize(
    "change", [{"augmentation": RandomResizedCrop(16)}, {"joined": JoinedImages()}]
)
def test_stored_images_cannot_be_changed(change):
    (name,) = change
    with refused(f"no data.{name}, .* stored"):
        ShardDataModule([], 2, **change).use_stored_images()
