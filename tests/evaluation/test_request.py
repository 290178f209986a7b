import pytest
import torch

from vlmtune.evaluation.request import make_request
from vlmtune.types import ImageRef


@pytest.fixture
def make(tmp_path):
    """Returns a function that makes a request for images and texts given as strings of letters."""

    def made(images, texts, pairs=None):
        refs = [ImageRef(tmp_path / letter) for letter in images]
        chosen = None if pairs is None else torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
        return make_request(refs, list(texts), chosen, lambda some: [ref.path.name for ref in some])

    return made


def random_pairs(n, m, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randint(size, (count,), generator=generator) for size in (n, m))
    return torch.stack(list(draws), dim=1).tolist()


def score(request, i, j):
    """A score that only depends on what is scored."""
    return 100 * ord(list(request.images)[i]) + ord(request.texts[j])


IMAGES, TEXTS = "abcadeb", "xyzxvw"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_blocks_of_all_ranks_give_back_what_was_asked_for(make, seed, ranks, size):
    pairs = random_pairs(7, 6, 12, seed) if seed else None
    request = make(IMAGES, TEXTS, pairs)
    parts, done = [], 0
    for rank in range(ranks):
        rows = request.rows(rank, ranks)
        assert rows.start == done
        done = rows.stop
        columns = set()
        for top in range(rows.start, rows.stop, size):
            tile = request.tile(range(top, min(top + size, rows.stop)))
            columns |= set(tile.columns.tolist())
            values = torch.full(tile.mask.shape, torch.nan)
            for i, j in tile.mask.nonzero().tolist():
                values[i, j] = score(request, top + i, int(tile.columns[j]))
            parts.append(tile.select(values))
        assert columns == set(request.columns(rows).tolist()) or not rows
    assert done == len(request.images)
    placed = request.restore(torch.cat(parts))
    if pairs is None:
        want = [[100 * ord(image) + ord(text) for text in TEXTS] for image in IMAGES]
    else:
        want = [100 * ord(IMAGES[i]) + ord(TEXTS[j]) for i, j in pairs]
    assert placed.tolist() == want


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_have_about_as_many_pairs(make, ranks):
    letters = "".join(chr(0x4E00 + i) for i in range(200))
    # The first images have most of the pairs.
    pairs = [[i, j] for i in range(200) for j in range(40 if i < 20 else 2)]
    request = make(letters, letters, pairs)
    counts = [request.count(request.rows(rank, ranks)) for rank in range(ranks)]
    assert sum(counts) == len(pairs)
    assert max(counts) - min(counts) <= 40


@pytest.mark.parametrize("pair", [[7, 0], [0, 6], [-1, 0], [0, -1]])
def test_pairs_out_of_range_are_refused(make, pair):
    with pytest.raises(ValueError, match=r"within \(7, 6\)"):
        make(IMAGES, TEXTS, [[0, 0], pair])
