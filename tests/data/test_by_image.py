"""Our shards, read by webdataset as its users read any."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import webdataset as wds
from torch.utils.data import DataLoader

from vlmtune.data import ShardSet, by_image
from vlmtune.data.shards import read_headers

# webdataset leaves the tars that it has read to the garbage collection.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture
def tars(shards: Path) -> Iterator[str]:
    yield str(shards / "shard-{000000..000002}.tar")
    gc.collect()


def test_a_plain_loop_sees_images_captions_and_hard_negatives(tars, shards):
    expected = []
    for _, group, _ in read_headers([ShardSet(str(shards))]):
        one, two = group.texts
        expected += [(group.image_ids[0], [one], [two]), (group.image_ids[1], [two], [one])]
    dataset = wds.WebDataset(tars, shardshuffle=False).decode("rgb").compose(by_image)
    fields = dataset.to_tuple("id", "image", "captions", "hard_negatives")
    seen = []
    for image_id, image, captions, negatives in DataLoader(fields, batch_size=None):
        assert image.shape == (8, 8, 3)
        seen.append((image_id, captions, negatives))
    assert seen == expected
