import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from jsonargparse import ArgumentParser

from tests.tiny import write_shards
from vlmtune.cli.fit import NOISE
from vlmtune.cli.main import main
from vlmtune.config import instantiate
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.collate import collate
from vlmtune.data.datamodule import EpochLoader, ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.errors import UserError
from vlmtune.language.caption_edits import (
    ExchangeAttributes,
    ReplaceWord,
    ReverseRelation,
    SwapAdjectives,
    SwapNouns,
)
from vlmtune.language.rewriting import Rewriter
from vlmtune.language.words import canonical
from vlmtune.types import Batch, Group

NEGATIVES = "data.caption_negatives.CaptionNegatives"


def swapping(count: int = 1) -> CaptionNegatives:
    return CaptionNegatives(Rewriter([SwapNouns(), SwapAdjectives()]), count)


def one(key: str, *texts: str, true_ids: set[str] | None = None, ids: str = "") -> Group:
    """An image with captions, whose ids are the captions themselves unless `ids` is given."""
    text_ids = tuple(f"{ids}{key}-{j}" if ids else text for j, text in enumerate(texts))
    return Group(
        key=key,
        image_ids=(f"image-{key}",),
        text_ids=text_ids,
        texts=texts,
        truth=torch.ones(1, len(texts), dtype=torch.bool),
        true_ids=(frozenset(text_ids) | (true_ids or set()),),
    )


def test_each_caption_gets_false_texts_of_its_own() -> None:
    groups = [one("a", "a red dog chases a black cat", "a dog"), one("b", "snow")]
    a, b = swapping(count=2).added(groups, seed=0, epoch=0)
    assert set(a.texts[2:]) == {"a black dog chases a red cat", "a red cat chases a black dog"}
    assert a.truth.tolist() == [[True, True, False, False]]
    assert b.texts == ("snow",)
    batch = collate([a, b])
    assert batch.targets.truth.int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert batch.targets.same_group.int().tolist() == [[1, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
    assert batch.targets.known.equal(batch.targets.same_group)
    assert groups[0].texts == ("a red dog chases a black cat", "a dog")


def test_they_depend_on_seed_epoch_and_group_alone() -> None:
    caption = "a small red dog chases a big black cat on green grass"
    groups = [one(key, caption) for key in "abcdefgh"]
    made = swapping()

    def texts(seed: int, epoch: int) -> list[str]:
        return [group.texts[1] for group in made.added(groups, seed, epoch)]

    assert texts(0, 0) == texts(0, 0)
    assert len({tuple(texts(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert len(set(texts(0, 0))) > 1
    alone = [made.added([group], 0, 0)[0].texts[1] for group in groups]
    assert alone == texts(0, 0)


@pytest.mark.parametrize("ids", ["", "id-"])
def test_what_is_true_is_never_a_negative(ids: str) -> None:
    caption, swapped = "a dog chases a cat", "A cat  chases a dog."
    made = swapping()
    # Known by the group's own captions.
    (group,) = made.added([one("a", caption, swapped, ids=ids)], 0, 0)
    assert len(group.texts) == 2
    # Known by an id whose caption is in the batch.
    other = one("b", swapped, ids=ids)
    first, second = made.added(
        [one("a", caption, true_ids={*other.text_ids}, ids=ids), other], 0, 0
    )
    assert len(first.texts) == 1
    assert len(second.texts) == 2
    # Known by an id that is the caption.
    (group,) = made.added([one("a", caption, true_ids={swapped}, ids=ids)], 0, 0)
    assert len(group.texts) == 1


@pytest.mark.parametrize("ids", ["", "id-"])
def test_the_true_caption_of_another_image_is_one_column(ids: str) -> None:
    groups = [one("a", "a dog chases a cat", ids=ids), one("b", "A cat chases a dog.", ids=ids)]
    batch = collate(swapping().added(groups, 0, 0))
    assert batch.texts == ("a dog chases a cat", "A cat chases a dog.")
    assert batch.targets.truth.int().tolist() == [[1, 0], [0, 1]]
    assert batch.targets.same_group.int().tolist() == [[1, 1], [1, 1]]


def test_across_ranks_it_is_known_by_its_words() -> None:
    ids = "id-"
    mine = swapping().added([one("a", "a dog chases a cat", ids=ids)], 0, 0)
    theirs = swapping().added([one("b", "a cat chases a dog", ids=ids)], 0, 0)
    batch = collate([*mine, *theirs])  # as if the ranks' batches were one
    at = {name: column for column, name in enumerate(batch.text_ids)}
    truth = batch.targets.truth
    for name in ("a cat chases a dog", "a dog chases a cat"):
        assert truth[:, at[name]].tolist() == [name.startswith("a dog"), name.startswith("a cat")]


def test_in_a_pair_a_negative_belongs_to_the_image_of_its_caption() -> None:
    texts = ("a red cube near a blue dog", "a blue cube near a red dog")
    pair = Group(
        key="p",
        image_ids=("i", "j"),
        text_ids=texts,
        texts=texts,
        truth=torch.eye(2, dtype=torch.bool),
        true_ids=tuple(frozenset({text}) for text in texts),
        exhaustive=True,
    )
    (group,) = CaptionNegatives(Rewriter([SwapNouns()])).added([pair], 0, 0)
    assert group.same_group is not None
    assert group.texts[2:] == ("a red dog near a blue cube", "a blue dog near a red cube")
    targets = collate([group]).targets
    assert targets.same_group.int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 1]]
    assert targets.truth.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    # Swapped adjectives give the other caption, which is there already.
    (group,) = CaptionNegatives(Rewriter([SwapAdjectives()])).added([pair], 0, 0)
    assert group.texts == texts


def test_a_false_text_of_the_record_is_not_rewritten() -> None:
    group = one("a", "a dog chases a cat")
    group = replace(
        group,
        texts=(*group.texts, "a man rides a horse"),
        text_ids=(*group.text_ids, "x"),
        truth=torch.tensor([[True, False]]),
    )
    (added,) = swapping().added([group], 0, 0)
    assert added.texts == ("a dog chases a cat", "a man rides a horse", "a cat chases a dog")


# -- in training ------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Callable[..., ShardDataModule]:
    folder = write_shards(tmp_path / "shards")
    rules = [SwapNouns(), ExchangeAttributes(), ReverseRelation(), ReplaceWord("ADJ")]

    def make(**changes: object) -> ShardDataModule:
        settings = {"negatives": CaptionNegatives(Rewriter(rules), 2), **changes}
        module = ShardDataModule([ShardSet(str(folder))], 2, [ShardSet(str(folder))], **settings)
        module.use_stored_images()
        return module

    return make


def batches(loader: EpochLoader, epoch: int = 0, done: int = 0) -> list[Batch]:
    loader.position = lambda: (epoch, done * loader.stream.batch_size)
    return list(loader)


def contents(some: list[Batch]) -> list[tuple]:
    return [(b.keys, b.texts, b.text_ids, b.targets.same_group.tolist()) for b in some]


@pytest.mark.filterwarnings("ignore:.*worker processes in total.*")
def test_a_resumed_epoch_has_the_same_negatives_from_workers_too(
    data: Callable[..., ShardDataModule],
) -> None:
    loader = data().train_dataloader()
    whole = contents(batches(loader, epoch=1))
    again = data(num_workers=2).train_dataloader()
    for done in (1, 3):
        assert contents(batches(again, epoch=1, done=done)) == whole[done:]
    assert contents(batches(loader, epoch=2)) != whole


def test_only_training_has_negatives_and_words_come_from_its_captions(
    data: Callable[..., ShardDataModule],
) -> None:
    module = data()
    stream = GroupStream((module.sets["train"][0],), 2, images=False)
    plain = {text for groups, _ in stream.batches() for group in groups for text in group.texts}
    trained = batches(module.train_dataloader())
    assert {text for batch in trained for text in batch.texts} - plain
    for batch in trained:
        made = ~torch.tensor([text in plain for text in batch.texts])
        assert not batch.targets.truth[:, made].any()
        assert len({canonical(text) for text in batch.texts}) == len(batch.texts)
        assert batch.targets.same_group[:, made].any(dim=0).all()
    assert module.negatives is not None
    words = module.negatives.rewriter.vocabulary
    assert words is not None
    assert set(words.counts["ADJ colour"]) == {"red", "green", "blue"}
    module.trainer = SimpleNamespace(global_rank=0, world_size=1, training=False)  # type: ignore[assignment]
    assert {text for batch in module.val_dataloader() for text in batch.texts} == plain


def test_another_rule_is_another_order_of_training(data: Callable[..., ShardDataModule]) -> None:
    state = data().train_dataloader().order()
    same = data().train_dataloader()
    same.check_order(state)
    with pytest.warns(UserWarning, match="another negatives"):
        data(negatives=None).train_dataloader().check_order(state)


def test_it_is_made_from_a_config() -> None:
    rules = [
        {"class_path": "vlmtune.language.caption_edits.SwapNouns"},
        {"class_path": "vlmtune.language.caption_edits.ReplaceWord", "init_args": {"tag": "VERB"}},
    ]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ShardDataModule, "data")
    config = {
        "train": [{"class_path": "vlmtune.data.shards.ShardSet", "init_args": {"path": "none"}}],
        "batch_size": 2,
        "negatives": {
            "class_path": "vlmtune.data.caption_negatives.CaptionNegatives",
            "init_args": {
                "count": 3,
                "rewriter": {
                    "class_path": "vlmtune.language.rewriting.Rewriter",
                    "init_args": {
                        "rules": rules,
                        "tagger": {"class_path": "vlmtune.language.tagger.LexiconTagger"},
                    },
                },
            },
        },
    }
    made = parser.instantiate(parser.parse_object({"data": config})).data.negatives
    assert isinstance(made, CaptionNegatives)
    assert made.count == 3
    assert made.rewriter.rules[1].tag == "VERB"
    again = instantiate(made.spec(), CaptionNegatives)
    assert again.spec() == made.spec()
    assert again.rewriter.needs_words


def plugin(name: str, /, **arguments: object) -> dict[str, object]:
    return {"class_path": f"vlmtune.{name}", "init_args": arguments}


@pytest.mark.slow
@pytest.mark.filterwarnings(*[f"ignore:{pattern}" for pattern in NOISE])
def test_a_fit_resumed_in_an_epoch_ends_with_the_same_weights(
    tmp_path: Path, model_folder: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["vlmtune"])
    rules = [plugin(f"language.caption_edits.{name}") for name in ("SwapNouns", "ReplaceWord")]
    rewriter = plugin("language.rewriting.Rewriter", rules=rules)

    def fit(name: str, steps: int, *more: str) -> dict[str, torch.Tensor]:
        saving = {"dirpath": str(tmp_path / name), "save_last": True, "every_n_train_steps": 1}
        config = {
            "model": {
                "backbone": plugin("backbones.open_clip.OpenClip", model=str(model_folder)),
                "adapter": plugin("adapters.linear_probe.LinearProbe"),
                "objectives": [plugin("objectives.info_nce.InfoNCE")],
                "store": str(tmp_path / "store"),
                "warmup": 0.0,  # a learning rate that does not depend on the number of steps
                "final_lr": 1.0,
            },
            "data": {
                "train": [plugin("data.shards.ShardSet", path=str(shards))],
                "batch_size": 4,
                "negatives": plugin(
                    "data.caption_negatives.CaptionNegatives", rewriter=rewriter, count=2
                ),
            },
            "trainer": {
                "accelerator": "cpu",
                "devices": 1,
                "logger": False,
                "max_steps": steps,
                "enable_progress_bar": False,
                "default_root_dir": str(tmp_path / name),
                "callbacks": [
                    {
                        "class_path": "pytorch_lightning.callbacks.ModelCheckpoint",
                        "init_args": saving,
                    }
                ],
            },
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        assert main(["fit", "--config", str(path), *more]) == 0
        return torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"]

    whole = fit("whole", 5)
    first = fit("cut", 4)  # one step into the second epoch
    last = fit("cut", 5, "--ckpt_path", str(tmp_path / "cut" / "last.ckpt"))
    assert all(whole[name].equal(last[name]) for name in whole)
    assert not all(whole[name].equal(first[name]) for name in whole)


def test_a_count_of_none_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1, got 0"):
        CaptionNegatives(Rewriter([SwapNouns()]), 0)
