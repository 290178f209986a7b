"""Which tokens are words."""

import pytest
import torch

from vlmtune.adapters.words import masked_mean, word_mask

LENGTHS = (4, 7, 3)


@pytest.mark.parametrize("special", [(0, 0), (1, 1), (2, 0)])
def test_words_are_what_lies_between_the_special_tokens(special):
    mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    lead, trail = special
    want = [[lead <= t < length - trail for t in range(7)] for length in LENGTHS]
    assert word_mask(mask, special).tolist() == want


def test_a_masked_mean_is_the_mean_of_what_is_left():
    tokens = torch.randn(3, 7, 5)
    mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    got = masked_mean(tokens, mask)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(got[row], tokens[row, :length].mean(dim=0))
