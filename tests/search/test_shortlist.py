import json

import pytest
import torch

from tests.refusals import refused
from tests.search.test_index import CAPTIONS, copied, images, joint, opened, photos, whole
from vlmtune.search import build_index, shortlist
from vlmtune.search.shortlist import principal_directions

__all__ = ["copied", "joint", "photos", "whole"]  # fixtures


def test_directions_are_those_of_a_singular_value_decomposition():
    rows = torch.randn(40, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = rows * torch.tensor([9.0, 5, 3, 2, 1, 0.5, 0.1]) + 20
    found = principal_directions(rows, 4)
    wanted = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)[2][:4].T
    torch.testing.assert_close((found.T @ wanted).abs(), torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 3])
def test_equal_rows_have_one_direction(count):
    found = principal_directions(torch.ones(count, 5), 4)
    assert found.shape == (5, 1)
    assert bool(torch.isfinite(found).all())


def test_products_of_the_images_that_gave_the_directions_are_exact(joint, whole):
    """But for a constant of each caption: scores are less those of the first image."""
    index = opened(whole, joint)
    assert index._shortlist is not None
    with index._encoder.evaluation():
        texts, _ = index._encoder.encode_text(CAPTIONS)
        vectors = index._encoder.recall_images(index._images(range(len(index))))
    scores = index._recalled() @ index._shortlist.project(texts).T
    exact = (vectors - vectors[0]) @ texts.T
    torch.testing.assert_close(scores - scores[0], exact, rtol=1e-3, atol=1e-4)


def test_directions_are_computed_anew_when_the_images_have_doubled(
    joint, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(shortlist, "SAMPLE", 4)
    monkeypatch.setattr(shortlist, "CHUNK", 2)
    out, files, seen = tmp_path / "index", images(photos), []
    for count in (3, 4, 6, 7, 7, 8):
        build_index(files[:count], joint, out, "x")
        index = opened(out, joint)
        assert index._shortlist is not None
        name = json.loads((out / "index.json").read_text())["shortlist"]
        seen.append((name, index._shortlist.fitted, len(index._shortlist.vectors)))
        recalled = index._encoder.recall_images(index._images(range(count)))
        projected = index._shortlist.project(recalled)
        torch.testing.assert_close(index._recalled(), projected, rtol=1e-4, atol=1e-4)
        kept = {name} if (count, len(seen)) == (7, 5) else {one for one, *_ in seen[-2:]}
        assert {path.name for path in out.glob("recall-*")} == kept
    assert seen == [
        ("recall-00000", 3, 3),  # too few to keep
        ("recall-00001", 4, 4),
        ("recall-00002", 4, 6),
        ("recall-00003", 4, 7),
        ("recall-00003", 4, 7),  # nothing new
        ("recall-00004", 8, 8),
    ]


@pytest.mark.parametrize("name", ["basis.bin", "vectors.bin", "meta.json"])
def test_a_damaged_shortlist_is_an_error_until_it_is_written_again(joint, whole, copied, name):
    path = copied / "recall-00000" / name
    path.write_bytes(path.read_bytes()[:-9])
    with refused("expected an index of vlmtune in .*, recall-00000 is damaged"):
        opened(copied, joint)
    build_index([whole.parent], joint, copied, "x")
    wanted = opened(whole, joint).search(CAPTIONS[0], 9)
    assert opened(copied, joint).search(CAPTIONS[0], 9) == wanted
