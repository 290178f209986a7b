import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.scored import assert_shares_add_up, embedded, random_values
from vlmtune.objectives.unit_contrast import UnitContrast
from vlmtune.types import PhraseScores, Scores, Targets


def given(values, truth, foils) -> Scores:
    inside = embedded(values)
    phrases = PhraseScores(values, truth, inside.text, foils)
    return Scores(values, torch.ones_like(truth), inside, phrases=phrases)


def loss_of(values, truth, foils, draws=None) -> float:
    loss = UnitContrast(draws=draws)
    return loss(given(values, truth, foils), Targets.diagonal(len(values))).item()


def naive(values, truth, foils, draws=None) -> float:
    images, texts = truth.shape
    units_of = [[k for k in range(texts) if truth[i, k]] for i in range(images)]
    foils_of = [[k for k in range(texts) if foils[i, k]] for i in range(images)]
    e = [[math.exp(x) for x in row] for row in values.tolist()]
    terms = []
    for i in range(images):
        mine = units_of[i][:draws]
        each = []
        for number, k in enumerate(mine):
            # Units and foils of the same number, or all of them.
            chosen = slice(None) if draws is None else slice(number, number + 1)
            units = {unit for row in units_of for unit in row[chosen]}
            against = {unit for unit in units if not truth[i, unit]} | {*foils_of[i][chosen]}
            others = [j for j in range(images) if not truth[j, k]]
            to_unit = e[i][k] / (e[i][k] + sum(e[i][j] for j in against))
            to_image = e[i][k] / (e[i][k] + sum(e[j][k] for j in others))
            each.append(-(math.log(to_unit) + math.log(to_image)) / 2)
        if mine:
            terms.append(sum(each) / len(each))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("draws", [None, 1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_loops(seed, draws):
    chance = torch.rand(5, 9, generator=torch.Generator().manual_seed(seed))
    truth, foils = chance > 0.8, chance < 0.2
    truth[0] = False  # an image without a unit
    values = random_values(seed).requires_grad_()
    want = naive(values, truth, foils, draws)
    assert loss_of(values, truth, foils, draws) == pytest.approx(want, abs=1e-12)
    cuts = [(slice(0, 2), slice(0, 2)), (slice(2, 5), slice(2, 9))]
    scores = given(values, truth, foils)
    assert_shares_add_up(UnitContrast(draws=draws), scores, Targets.diagonal(5), cuts)


def test_with_one_unit_an_image_it_is_the_loss_of_the_paper():
    values = random_values(0, (4, 8))
    units, foils = values[:, :4], values[:, 4:]
    own = torch.cat([units, foils.diagonal()[:, None]], dim=1)
    labels = torch.arange(4)
    want = (cross_entropy(own, labels) + cross_entropy(units.T, labels)) / 2
    eye, none = torch.eye(4) > 0, torch.zeros(4, 4) > 0
    truth, false = torch.cat([eye, none], dim=1), torch.cat([none, eye], dim=1)
    assert loss_of(values, truth, false) == pytest.approx(want.item(), abs=1e-12)


def test_no_unit_costs_nothing():
    assert loss_of(torch.zeros(3, 0), torch.zeros(3, 0) > 0, torch.zeros(3, 0) > 0) == 0
