import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.scored import naive_contrast, random_computed, random_targets, random_values
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.objectives.triplet_clip import TripletClip
from vlmtune.types import Scores, Targets


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_double_loop(seed):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    true, false = targets.truth & computed, ~targets.truth & computed
    want = naive_contrast(values, true, false)
    want += naive_contrast(values.T, true.T, (false & ~targets.same_group).T)
    got = TripletClip()(Scores(values, computed), targets)
    assert got.item() == pytest.approx(want, abs=1e-12)


def scenes(count):
    """Scenes and their twins: images x1 x1' x2 x2' ..., captions alike."""
    truth = torch.eye(2 * count, dtype=torch.bool)
    own = torch.block_diag(*[torch.ones(2, 2)] * count) > 0
    return Targets(truth, torch.ones_like(own), own)


def test_for_scenes_and_twins_it_is_the_sum_of_two_negclip_losses():
    """As released, but that a caption also meets the twins of other groups."""
    values, count = random_values(7, (8, 8), scale=3.0), 4
    scene, twin = torch.arange(0, 8, 2), torch.arange(1, 8, 2)
    want = 0
    for images, texts, hard in ((scene, scene, twin), (twin, twin, scene)):
        to_text = cross_entropy(values[images][:, torch.cat([texts, hard])], torch.arange(count))
        to_image = []
        for j, text in enumerate(texts):
            others = [i for i in range(8) if i // 2 != j]
            logits = values[[int(images[j]), *others], text]
            to_image.append(cross_entropy(logits[None], torch.zeros(1, dtype=torch.long)))
        want = want + (to_text + torch.stack(to_image).mean()) / 2
    torch.testing.assert_close(TripletClip()(Scores.full(values), scenes(count)), want)


def test_a_caption_does_not_meet_the_twin_image():
    values = torch.zeros(2, 2, requires_grad=True)
    TripletClip()(Scores.full(values), scenes(1)).backward()
    torch.testing.assert_close(values.grad, torch.tensor([[-0.25, 0.25], [0.25, -0.25]]))


def test_without_twins_it_is_twice_info_nce():
    values, truth = random_values(9, (4, 6)), torch.eye(4, 6) > 0
    own = truth.clone()
    own[0, 4] = own[2, 5] = True
    for share in (own, truth):
        targets = Targets(truth, share, truth)
        got = TripletClip()(Scores.full(values), targets)
        torch.testing.assert_close(got, 2 * InfoNCE()(Scores.full(values), targets))
