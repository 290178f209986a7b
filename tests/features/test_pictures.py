"""Digests of very many pictures: the memory for those that wait is bounded."""

from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from vlmtune.data.images import digest
from vlmtune.features import pictures
from vlmtune.features.pictures import Failures, PictureReader
from vlmtune.types import ImageRef


def test_of_many_pictures_a_part_waits_at_a_time(tmp_path, monkeypatch):
    files = [ImageRef(tmp_path / f"{number}.png") for number in range(8)]
    for number, ref in enumerate(files):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(ref.path)
    asked = []

    class Pool(ThreadPoolExecutor):
        def map(self, function, items):
            asked.append(len(items))
            return super().map(function, items)

    monkeypatch.setattr(pictures, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(pictures, "READ_AHEAD", 3)
    reader = PictureReader(lambda image: image, 2, Failures())
    assert reader.digests(files) == list(map(digest, files))
    assert asked == [3, 3, 2]
