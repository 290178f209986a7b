"""Training batches with mined neighbours."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from data_builders.shard_builder import Record, ShardBuilder
from tests.backbones.hf_models import write_vilt
from tests.data.conftest import spoil
from tests.data.test_datamodule import fit, preprocess
from tests.refusals import refused
from tests.runs import QUIET
from vlmtune.adapters.matching import Matching
from vlmtune.backbones.hf.vilt import Vilt
from vlmtune.data.datamodule import EpochLoader, ShardDataModule
from vlmtune.data.group_changes import GroupChanges
from vlmtune.data.record_index import read_group, record_index
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.mining.build import open_or_build_cache
from vlmtune.mining.cache import CacheKey, SimilarityCache
from vlmtune.mining.corpus import corpus, corpus_digest
from vlmtune.mining.neighbours import MinedNeighbours, _captions
from vlmtune.objectives.eqsim import EqSim
from vlmtune.objectives.itm import ITM
from vlmtune.pairs.ranking_pairs import RankingPairs
from vlmtune.training.module import AdaptationModule
from vlmtune.types import Group, Targets

COUNT = 24

pytestmark = QUIET


class Circle(ShardBuilder):
    """Images on a circle, each with a caption; every fifth also has the one of the next image."""

    def __init__(self, png=None, prefix: str = "") -> None:
        super().__init__(10)
        self.png, self.prefix = png, prefix

    def records(self) -> Iterator[Record]:
        for i in range(COUNT):
            true = (i, (i + 1) % COUNT) if i % 5 == 0 else (i,)
            group = Group(
                key=f"r{i}",
                image_ids=(f"{self.prefix}i{i}",),
                text_ids=(f"{self.prefix}t{i}",),
                texts=(f"caption {i}",),
                truth=torch.ones(1, 1, dtype=torch.bool),
                true_ids=(frozenset(f"{self.prefix}t{j}" for j in true),),
                exhaustive=True,
            )
            yield group, [self.png(i)]


@pytest.fixture
def shards(tmp_path, encoded_png):
    folder = tmp_path / "shards"
    builder = Circle()
    builder.png = encoded_png
    builder.build(folder, progress=False)
    return ShardSet(str(folder))


@pytest.fixture
def cache(shards, tmp_path):
    known = corpus([shards])
    angle = torch.arange(COUNT) * 2 * torch.pi / COUNT
    x = torch.stack([angle.cos(), angle.sin()], dim=1)
    key = CacheKey("b", "", known.digest, neighbours=8, tile=7)
    return str(open_or_build_cache(tmp_path / "caches", key, known.captions, lambda: x).folder)


def loader(shards, mined, done=0, workers=0, epoch=0):
    mined.prepare([shards])
    stream = GroupStream((shards,), 4, seed=8)
    changes = GroupChanges(mined=mined)
    return EpochLoader(stream, preprocess, lambda: (epoch, 4 * done), 0, 1, workers, changes)


def test_an_index_finds_every_record_as_the_stream_reads_it(shards):
    noted = []
    index = record_index([shards], lambda *found: noted.append(found))
    assert len(index) == COUNT
    assert noted == [(number, f"i{number}") for number in range(COUNT)]
    assert [place.key for place in index] == [f"r{number}" for number in range(COUNT)]
    assert (index[22].key, index[23].key) == ("r22", "r23")
    group = read_group(index[17])
    assert (group.key, group.texts) == ("r17", ("caption 17",))
    assert group.images[0].getpixel((0, 0))[0] == 17
    assert read_group(index[3], images=False).images is None
    Path(index[3].shard).unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        read_group(index[3])


def test_a_corpus_knows_captions_of_other_records_and_mines_none_false_of_its_own(shards):
    known = corpus([shards])
    assert known.captions["i5"] == ("caption 5", "caption 6")
    assert known.captions["i6"] == ("caption 6",)
    assert list(known.images) == [f"i{i}" for i in range(COUNT)]
    assert known.digest == corpus_digest([shards, shards])
    truth = torch.tensor([[True, False, False], [False, False, True]])
    group = Group("r", ("i", "j"), ("t", "u", "v"), ("t", "u", "v"), truth, (frozenset("t"),) * 2)
    assert set(_captions(group)) == {"t", "v"}


def test_each_group_brings_its_hardest_neighbours(shards, cache):
    mined = MinedNeighbours(cache, count=2, among=4)
    seen = near = 0
    for batch in loader(shards, mined):
        own, added = batch.keys[:4], batch.keys[4:]
        assert len(added) == 8
        assert len(set(batch.keys)) == 12
        for position, key in enumerate(added):
            i, j = int(own[position // 2][1:]), int(key[1:])
            distance = min((i - j) % COUNT, (j - i) % COUNT)
            # Of the nearest four; or farther where those are in the batch, or say nothing false.
            assert 1 <= distance <= 4
            near += distance <= 2
            assert not (i % 5 == 0 and j == (i + 1) % COUNT)
        assert batch.pixels[:, 0, 0, 0].tolist() == [float(key[1:]) for key in batch.keys]
        seen += 1
    assert seen == COUNT // 4
    assert near > seen * 8 // 2


def test_resuming_gives_the_same_batches_from_workers_too(shards, cache):
    whole = list(loader(shards, MinedNeighbours(cache, 1, 3), epoch=1))
    rest = list(loader(shards, MinedNeighbours(cache, 1, 3), 2, 2, 1))
    assert [batch.keys for batch in rest] == [batch.keys for batch in whole[2:]]
    for a, b in zip(rest, whole[2:], strict=True):
        assert a.pixels.equal(b.pixels)
        assert a.targets.mined_negatives.equal(b.targets.mined_negatives)


@pytest.mark.parametrize("among", [2, 5])
def test_every_image_is_told_the_captions_of_the_hardest_records_of_its_batch(shards, cache, among):
    opened, marks = SimilarityCache(Path(cache)), 0
    for batch in loader(shards, MinedNeighbours(cache, count=2, among=among)):
        for n, image in enumerate(batch.image_ids):
            rows = opened.counterpart_rows(opened.image_ids.find(image))
            ranked = [opened.image_ids[row] for row in rows]
            here = [name for name in ranked if name in batch.image_ids]
            hardest = {f"t{name[1:]}" for name in here[:among]}
            for m, text in enumerate(batch.text_ids):
                want = text in hardest and not batch.targets.truth[n, m]
                assert bool(batch.targets.mined_negatives[n, m]) is want
                marks += want
        assert batch.targets.mined_negatives[:4].any(dim=1).all()
    assert marks


def test_marks_are_of_every_record_of_an_image_and_of_no_other_spelling(shards, cache):
    mined = MinedNeighbours(cache)
    mined.prepare([shards])
    index = record_index([shards])
    two, three = read_group(index[2]), read_group(index[3])
    again = replace(three, key="again", text_ids=("again",), texts=("Caption 2. ",))
    other = replace(three, key="other", text_ids=("other",), texts=("other",))
    (marked, *_), _ = mined.extend([two, three, again, other], 0, 0)
    assert {"t3", "again", "other"} & marked.mined_negatives == {"t3", "other"}


class Noting(RankingPairs):
    """Keeps what it is given and what it chooses."""

    def __init__(self, negatives: int, mined: int) -> None:
        super().__init__(negatives, mined=mined)
        self.seen: list[tuple[Targets, torch.Tensor]] = []

    def __call__(self, targets, generator, reference=None):
        chosen = super().__call__(targets, generator, reference)
        self.seen.append((targets, chosen))
        return chosen


def test_a_backbone_without_embeddings_trains_on_mined_pairs(shards, cache, tmp_path):
    folder = write_vilt(tmp_path / "vilt")

    def run(every=None, resume=None):
        policy = Noting(4, mined=2)
        module = AdaptationModule(Vilt(str(folder)), Matching(1), [ITM(), EqSim()], policy)
        data = ShardDataModule([shards], 4, [shards], seed=8, mined=MinedNeighbours(cache, 2, 4))
        lengths = {"limit_train_batches": 2, "limit_val_batches": 1, "max_epochs": 1}
        fit(module, data, tmp_path, resume, every, **lengths)
        *seen, (validated, chosen) = policy.seen
        assert validated.mined_negatives is None  # others take their place
        assert (chosen & ~validated.truth).any()
        return seen, module.state_dict()

    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    seen, weights = run(every)
    assert len(seen) == 2
    for targets, chosen in seen:
        assert len(targets.mined_negatives) == 12
        false = chosen & ~targets.truth
        assert false.sum(dim=1).tolist() == [4] * 12
        there = targets.mined_negatives.sum(dim=1)
        assert ((false & targets.mined_negatives).sum(dim=1) >= there.clamp(max=2)).all()
        assert (there[:4] >= 2).all()
    (again,), resumed = run(resume=tmp_path / "step=1.ckpt")
    assert again[1].equal(seen[1][1])
    assert all(resumed[name].equal(value) for name, value in weights.items())


def test_epochs_draw_anew_from_neighbours_with_stored_features(shards, cache):
    mined = MinedNeighbours(cache, count=1, among=6)
    mined.prepare([shards])
    group = read_group(record_index([shards])[9])
    drawn = [mined.extend([group], 0, epoch)[0][1].key for epoch in range(30)]
    assert len(set(drawn)) == 6
    there = pickle.loads(pickle.dumps(mined))  # as it travels to a worker
    assert [there.extend([group], 0, epoch)[0][1].key for epoch in range(30)] == drawn
    mined = MinedNeighbours(cache, count=1, among=2)
    mined.prepare([shards])
    group = read_group(record_index([shards])[8])
    for epoch in range(6):
        groups, damaged = mined.extend([group], 0, epoch, images=False, stored={"i8", "i9"})
        assert [one.key for one in groups] == ["r8", "r9"]
        assert damaged == []
    assert len(mined.extend([group], 0, 0, images=False, stored={"i8"})[0]) == 1


def test_unusable_neighbours_are_passed_over_and_reported(shards, cache, damage_set):
    damage_set(shards, b'"text": "caption 4"', b'"tixt": "caption 4"')
    mined = MinedNeighbours(cache, count=1, among=2)
    mined.prepare([shards])  # record 4 is no longer indexed
    assert [place.key for place in mined._index] == [f"r{i}" for i in range(COUNT) if i != 4]
    good = read_group(next(place for place in mined._index if place.key == "r3"))
    spoil(shards, "r2")
    damaged = []
    for epoch in range(9):
        groups, lines = mined.extend([good], 0, epoch)
        assert len(groups) == 2
        assert groups[1].key in {"r1", "r5"}
        damaged += lines
    assert damaged
    assert all(" r2 image refused" in line for line in damaged)


def test_a_cache_of_other_shards_is_refused_and_a_resumed_run_told_of_another_choice(
    shards, cache, tmp_path, encoded_png
):
    other = Circle(prefix="o")
    other.png = encoded_png
    other.build(tmp_path / "other", progress=False)
    with refused("other shards"):
        MinedNeighbours(cache).prepare([ShardSet(str(tmp_path / "other"))])
    with refused("expected a similarity cache"):
        MinedNeighbours(str(tmp_path / "nowhere")).prepare([shards])
    state = loader(shards, MinedNeighbours(cache, 1, 3)).order()
    same, other = MinedNeighbours(cache, 1, 3), MinedNeighbours(cache, 1, 4)
    loader(shards, same).check_order(state)
    with pytest.warns(UserWarning, match="a change of mined"):
        loader(shards, other).check_order(state)
