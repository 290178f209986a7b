import pytest
import torch

from tests.ranks import run_ranks
from tests.refusals import refused
from tests.runs import QUIET, fit, module, same_weights
from tests.toy import Together, Toy, Tune, batch, groups
from vlmtune.adapters import FullFineTuning, LinearProbe, MMAdapter
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.export import save_export
from vlmtune.model import load
from vlmtune.objectives import InfoNCE, RankKL
from vlmtune.pairs.all_pairs import AllPairs
from vlmtune.training.scores import TrainingScores
from vlmtune.training.teacher import Teacher
from vlmtune.training.wandb_runs import started_from

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
NEEDS = frozenset({"embedded", "teacher"})


def toy_teacher(whole=False, kind=Together):
    backbone, adapter = Toy(), kind()
    adapter.attach(backbone)
    return Teacher(backbone, adapter, whole)


def taught(made, group, whole=False, kind=Together):
    scores = TrainingScores(Toy(), Tune(), AllPairs(), NEEDS, teacher=toy_teacher(whole, kind))
    return scores.adapter, scores.shard(made, group, torch.Generator())


@pytest.mark.parametrize(("whole", "kind"), [(False, Together), (True, Together), (False, Tune)])
def test_the_teacher_scores_the_pairs_of_a_group_or_all(whole, kind):
    made = batch(groups((3,))[0])
    _, shard = taught(made, ProcessGroup(), whole, kind)
    got = shard.rows.teacher
    assert shard.columns.teacher is got
    assert not got.values.requires_grad
    model = toy_teacher(kind=kind)
    features = [model.features.encode_batch(side, made) for side in ("image", "text")]
    for i in range(len(made.image_ids)):
        for j in range(len(made.texts)):
            listed = whole or bool(made.targets.same_group[i, j])
            assert got.computed[i, j] == listed
            want = model.adapter(features[0][[i]], features[1][[j]]).values if listed else 0.0
            assert got.values[i, j].item() == pytest.approx(float(want))


class Both(Together):
    """Matching scores, and contrastive ones."""

    def __init__(self):
        super().__init__()
        self.contrast = Tune()

    def attach(self, backbone):
        self.contrast.attach(backbone)
        super().attach(backbone)


def test_contrastive_scores_have_the_teacher_and_the_frozen_backbone_beside_them():
    needs = {"contrast", "teacher", "reference"}
    scores = TrainingScores(Toy(), Both(), AllPairs(), needs, teacher=toy_teacher())
    shard = scores.shard(batch(groups((3,))[0]), ProcessGroup(), torch.Generator())
    for part in (shard.rows, shard.contrast.rows, shard.contrast.columns):
        assert part.teacher.values.equal(shard.rows.teacher.values)
        assert part.reference.equal(shard.rows.reference)


def lesson(rank, corpus):
    """The loss of a rank's part and its gradient, for a batch whose captions ranks share."""
    group = ProcessGroup()
    made = batch(corpus[rank])
    adapter, shard = taught(made, group)
    loss = RankKL(by_text=True).shard_loss(shard, group)
    loss.backward()
    return loss.detach(), adapter.image.weight.grad


def test_the_parts_of_all_ranks_are_the_loss_of_one_process(tmp_path):
    for seed in range(2):
        corpus = groups((2, 3), seed)
        everything = [group for part in corpus for group in part]
        want, want_gradient = lesson(0, [everything])
        given = run_ranks(2, tmp_path / str(seed), lesson, corpus)
        losses, gradients = zip(*given, strict=True)
        torch.testing.assert_close(sum(losses), want)
        torch.testing.assert_close(sum(gradients), want_gradient)
        assert want > 0


@pytest.fixture(scope="module")
def exported(model_folder, tmp_path_factory):
    """A joint adapter on the tiny backbone, written as users export it."""
    torch.manual_seed(3)
    backbone = OpenClip(str(model_folder))
    adapter = MMAdapter(heads=2, hidden=2, dropout=0.1)
    adapter.attach(backbone)
    folder = tmp_path_factory.mktemp("teacher") / "export"
    save_export(folder, backbone, adapter, provenance={})
    return str(folder)


@pytest.mark.parametrize("student", [LinearProbe, FullFineTuning])
def test_an_exported_model_teaches_with_and_without_the_store(
    student, exported, model_folder, shards, tmp_path
):
    def learnt(store):
        options = {"store": store, "teacher": exported}
        made = module(model_folder, student(), [RankKL(teacher_temperature=0.2)], **options)
        origin = {"name": exported, "digest": load(exported).digest()}
        assert started_from(made)["teacher"] == origin
        before = {name: value.clone() for name, value in made.teacher.state_dict().items()}
        _, watch = fit(made, shards, tmp_path, steps=4)
        assert same_weights(made.teacher.state_dict(), before)
        assert not any("teacher" in name for name in made.state_dict())
        return watch.losses

    plain = learnt(None)
    assert plain[-1] < plain[0]
    assert learnt(str(tmp_path / "store")) == pytest.approx(plain, rel=1e-3)


def test_a_teacher_and_a_reader_come_together_and_it_stays_as_it_is(
    exported, model_folder, shards, tmp_path
):
    alone = module(model_folder, LinearProbe(), [RankKL()])
    with refused("got only an objective that reads one: set model.teacher"):
        fit(alone, shards, tmp_path)
    unread = module(model_folder, LinearProbe(), [InfoNCE()], teacher=exported)
    with refused("got only a teacher: set"):
        fit(unread, shards, tmp_path)
    teacher = toy_teacher().train()
    assert not any(part.training for part in teacher.modules())
    assert not any(weight.requires_grad for weight in teacher.parameters())


def test_pixels_of_another_backbone_are_no_input(model_folder):
    teacher = Teacher(OpenClip(str(model_folder)), LinearProbe())
    teacher.check_pixels(OpenClip(str(model_folder)))
    other = OpenClip(str(model_folder))
    other.preprocess = lambda image: teacher.backbone.preprocess(image) + 1
    with refused("expected a teacher that reads the pixels of .*: set model.store"):
        teacher.check_pixels(other)
