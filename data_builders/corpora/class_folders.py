"""Folders of images that are named after classes, as shards.

In: the folders. Out: images with captions of their class. Never: two images of a class as each
other's negatives, or an image of a split that is measured.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le
from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import override

from data_builders.measured_images import MeasuredImages, measured_checksums
from data_builders.shard_builder import Record, ShardBuilder, image_group, record_keys
from data_builders.shard_files import all_named, listed_image, summed
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, reading
from vlmtune.storage.image_files import image_files

LAYOUT = "at least two folders of images, one for each class,"
NAMES = "a JSON object {folder: name} with a different name for each folder"


class ClassFoldersBuilder(ShardBuilder):
    """Images in folders named after their classes, as CIFAR-10 and ImageNet are exported.

    An image of the folder `fire_truck` has the captions "a photo of a fire truck." and so on, one
    for each template. A caption is its own id, so it is true of every image of its class. Captions
    of other classes are its hard negatives.

    Cola mixes 5 % of CIFAR-10's training images into its own data and so recovers the accuracy
    that adaptation cost (Ray et al. 2023, section 7): `fraction: 0.05`.

    Args:
        path: The folder with a folder for each class; images may lie at any depth in it.
        templates: Captions, each with {} for the name of the class.
        classes: JSON object `{folder: name}`; without it folders are named as they are, with
            blanks for underscores.
        fraction: Fraction of the images of each class that are written, at random, at least one. A
            smaller fraction of one seed is part of a larger one.
        negatives: Number of other classes whose captions are hard negatives of an image.
        measured: Benchmarks whose images are left out, such as the folder of the test split; by
            content, see `TableBuilder`.
        seed: Seed of the fraction and of the hard negatives.
    """

    def __init__(self, path: Path, templates: Sequence[str] = ("a photo of a {}.",),
                 classes: Path | None = None, fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
                 negatives: NonNegativeInt = 4,
                 measured: Sequence[Path] = (), seed: int = 0,
                 records_per_shard: PositiveInt = 1000) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        wrong = [text for text in templates if text.count("{}") != 1]
        if wrong or not templates or len(set(templates)) < len(templates):
            raise UserError(
                "expected different templates, each with {} once, got "
                f"{wrong[0] if wrong else list(templates)!r}: write {{}} where a class is named"
            )
        self.path, self.templates = Path(path), tuple(templates)
        self.classes = None if classes is None else Path(classes)
        self.fraction, self.negatives, self.seed = fraction, negatives, seed
        self.measured = tuple(map(Path, measured))

    @override
    def checksums(self) -> dict[str, str]:
        every = itertools.chain.from_iterable(self._files.values())
        listing = [listed_image(file, self.path) for file in every]
        images = {"images": summed(listing)}
        return all_named(super().checksums(), measured_checksums(self.measured), images)

    @override
    def records(self) -> Iterator[Record]:
        names = self._names()
        measured = MeasuredImages(self.measured, exists=self.exists)
        sampled: list[tuple[str, Path, str, bytes]] = []
        labels_of: dict[bytes, set[str]] = defaultdict(set)  # an image may lie in several folders
        for label, files in self._files.items():
            rng = random.Random(f"{self.seed}:{label}")
            count = max(1, round(self.fraction * len(files)))
            self.counts["skipped: not in the fraction"] += len(files) - count
            for file in sorted(rng.sample(files, len(files))[:count]):
                image = file.relative_to(self.path).as_posix()
                digest = measured.digest(file, image)
                if digest is None:
                    continue
                if measured.has(image, digest):
                    self.counts["skipped: measured"] += 1
                    continue
                labels_of[digest].add(label)
                sampled.append((label, file, image, digest))
        every = itertools.chain.from_iterable(self._files.values())
        # Of all images, so that another fraction changes no key.
        keys = record_keys(file.relative_to(self.path).as_posix() for file in every)
        known: set[bytes] = set()
        for label, file, image, digest in sampled:
            if digest in known:
                self.counts["skipped: repeated image"] += 1
                continue
            known.add(digest)
            rng = random.Random(f"{self.seed}:{image}")
            texts = self._texts(label, labels_of[digest], names, rng)
            self.counts["captions"] += sum(texts.values())
            self.counts["hard negatives"] += len(texts) - sum(texts.values())
            # Captions of its other classes are true of it in batches that have them.
            named = [names[other] for other in labels_of[digest]]
            true = [text.replace("{}", name) for text in self.templates for name in named]
            yield image_group(image, texts, true, key=keys[image]), [file]
        measured.report(self.counts)

    def _texts(
        self, label: str, labels: Collection[str], names: Mapping[str, str], rng: random.Random
    ) -> dict[str, bool]:
        """The captions of a class, and one of each of some other classes, which are false.

        `labels` are all classes of the image.
        """
        texts: dict[str, bool] = {}
        others = [name for folder, name in names.items() if folder not in labels]
        for name in rng.sample(others, min(self.negatives, len(others))):
            texts[rng.choice(self.templates).replace("{}", name)] = False
        for template in self.templates:
            texts[template.replace("{}", names[label])] = True
        return texts

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """The images of each folder, by its name."""
        with reading(self.path, LAYOUT, "pass their folder as `path`"):
            folders = sorted(path for path in self.path.iterdir() if path.is_dir())
        files = {}
        for folder in folders:
            if not folder.name.startswith("."):
                files[folder.name] = image_files(folder)
        empty = [name for name, listed in files.items() if not listed]
        if len(files) < 2 or empty:
            came = f"no image in {empty[0]!r}" if len(files) > 1 else f"{len(files)} folders"
            raise UserError(
                f"expected {LAYOUT} in {self.path}, got {came}: pass their folder as `path`"
            )
        return files

    def _names(self) -> dict[str, str]:
        """The name of the class of each folder, no two alike."""
        names = {folder: " ".join(folder.split("_")) for folder in self._files}
        if self.classes is not None:
            given = read_json(self.classes, NAMES, shape=dict[str, str])
            names = {folder: given.get(folder, "").strip() for folder in self._files}
        folder_of: dict[str, str] = {}
        for folder, name in names.items():
            if not name or folder_of.setdefault(name, folder) != folder:
                where = self.classes or self.path
                raise UserError(
                    f"expected {NAMES} in {where}, got {name!r} for {folder!r}: correct `classes`"
                )
        return names
