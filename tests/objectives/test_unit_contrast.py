import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.scored import embedded, random_values
from vlmtune.objectives.unit_contrast import UnitContrast
from vlmtune.types import PhraseScores, Scores, Targets


def given(values, truth, foils) -> Scores:
    inside = embedded(values)
    phrases = PhraseScores(values, truth, inside.text, foils)
    return Scores(values, torch.ones_like(truth), inside, phrases=phrases)


def loss_of(values, truth, foils) -> float:
    return UnitContrast()(given(values, truth, foils), Targets.diagonal(len(values))).item()


def naive(values, truth, foils) -> float:
    images, texts = truth.shape
    units = [k for k in range(texts) if any(truth[i, k] for i in range(images))]
    e = [[math.exp(x) for x in row] for row in values.tolist()]
    terms = []
    for i in range(images):
        mine = [k for k in range(texts) if truth[i, k]]
        against = {k for k in units if not truth[i, k]} | {k for k in range(texts) if foils[i, k]}
        each = []
        for k in mine:
            others = [j for j in range(images) if not truth[j, k]]
            to_unit = e[i][k] / (e[i][k] + sum(e[i][j] for j in against))
            to_image = e[i][k] / (e[i][k] + sum(e[j][k] for j in others))
            each.append(-(math.log(to_unit) + math.log(to_image)) / 2)
        if mine:
            terms.append(sum(each) / len(each))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_loops(seed):
    chance = torch.rand(5, 9, generator=torch.Generator().manual_seed(seed))
    truth, foils = chance > 0.8, chance < 0.2
    truth[0] = False  # an image without a unit
    values = random_values(seed)
    assert loss_of(values, truth, foils) == pytest.approx(naive(values, truth, foils), abs=1e-12)


def test_with_one_unit_an_image_it_is_the_loss_of_the_paper():
    values = random_values(0, (4, 8))
    units, foils = values[:, :4], values[:, 4:]
    own = torch.cat([units, foils.diagonal()[:, None]], dim=1)
    labels = torch.arange(4)
    want = (cross_entropy(own, labels) + cross_entropy(units.T, labels)) / 2
    eye, none = torch.eye(4) > 0, torch.zeros(4, 4) > 0
    truth, false = torch.cat([eye, none], dim=1), torch.cat([none, eye], dim=1)
    assert loss_of(values, truth, false) == pytest.approx(want.item(), abs=1e-12)


def test_a_foil_of_another_image_is_not_compared_and_no_unit_costs_nothing():
    values, truth = random_values(0, (2, 3)), torch.eye(2, 3) > 0
    foils = torch.zeros(2, 3) > 0
    foils[0, 2] = True
    other = values.clone()
    other[1, 2] += 7
    assert loss_of(other, truth, foils) == loss_of(values, truth, foils)
    other[0, 2] += 7
    assert loss_of(other, truth, foils) > loss_of(values, truth, foils)
    assert loss_of(torch.zeros(3, 0), torch.zeros(3, 0) > 0, torch.zeros(3, 0) > 0) == 0
