"""Our shards in a pipeline of webdataset: an image a sample, with its captions.

In: samples that `webdataset.WebDataset` decoded. Out: fields by name. Never: a file.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def by_image(samples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields each image of our records with its captions and hard negatives.

    A stage for `WebDataset(...).decode("pil").compose(by_image)`. The fields are `image`,
    `captions` and `hard_negatives`, which are lists of texts, and `id`, the id of the image. A
    record of two images gives two samples: the hard negatives of one are captions of the other.

    Example:
        >>> texts = [{"id": "a", "text": "a dog"}, {"id": "b", "text": "a cat"}]
        >>> images = [{"id": "7", "file": "0.png", "true": ["a"]}]
        >>> record = {"images": images, "texts": texts, "truth": [[1, 0]]}
        >>> next(by_image([{"__key__": "k", "0.png": "pixels", "json": record}]))["hard_negatives"]
        ['a cat']
    """
    for sample in samples:
        record = sample["json"]
        for image, row in zip(record["images"], record["truth"], strict=True):
            captions = []
            hard_negatives = []
            for text, true in zip(record["texts"], row, strict=True):
                listed = captions if true else hard_negatives
                listed.append(text["text"])
            yield {
                "__key__": sample["__key__"],
                "id": image["id"],
                "image": sample[image["file"]],
                "captions": captions,
                "hard_negatives": hard_negatives,
            }
