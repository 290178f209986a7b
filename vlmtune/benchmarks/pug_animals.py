"""PUG: Animals: do embeddings change alike where background, size or texture of an animal changes?

Files: `labels_pug_animal.csv` with the columns filename, world_name, character_name,
character_scale, camera_yaw and character_texture; an image is `<character_name>/<filename>` under
the folder. 70 animals x 64 backgrounds x 3 sizes x 4 textures x 4 camera angles = 215,040.
Source: Bordes et al. 2023, PUG, section 3.2 and appendices B.2 and C.1.
"""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.benchmarks.base import Benchmark, Convention, Embed, Score, check_images
from vlmtune.benchmarks.pug_animals_samples import (
    COLUMNS,
    DESCRIBED,
    FACTORS,
    Samples,
    group_samples,
    read_scenes,
)
from vlmtune.benchmarks.pug_files import SITE, check_options, drawn
from vlmtune.errors import UserError
from vlmtune.metrics.equivariance import agreement, alignment, mean_cosine, paired_alignment
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Result
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class _Items:
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    captions: tuple[int, ...]
    samples: dict[str, Samples]


class PugAnimals(Benchmark):
    r"""Equivariance of image embeddings, of text embeddings, and across both, by factor.

    A sample is an animal with all its factors but one. For each change of that one from b to b',
    $\delta_i = f(i, b') - f(i, b)$ are the differences of normalised embeddings, and

    - `image/<factor>` is the mean cosine of $\delta^{image}_i$ and $\delta^{image}_j$,
    - `text/<factor>` that of $\delta^{text}_i$ and $\delta^{text}_j$,
    - `across/<factor>` that of $\delta^{image}_i$ and $\delta^{text}_i$,

    over samples and then over changes (both directions of a change give the same). They are
    cosines, from -1 to 1; 0 is what vectors with nothing in common have. `series` has the mean of
    each sample; intervals resample animals. See `vlmtune.metrics.equivariance`.

    Captions are "A photo of a [size] sized [animal] textured with [texture] on a [background]
    background", without the texture where it is Default; sizes 0.7, 1.0 and 1.3 are small, medium
    and big. Names are split into words, as the paper writes "village square". The camera's angle is
    in no caption: other factors are studied from the front only (53,760 images), and `camera_yaw`
    (all images) has only `image/camera_yaw`.

    Conventions: "strict" takes all pairs of samples, exactly; "reference" pairs them at random, as
    appendix C.1 says (no script is published), with `seed`.

    It needs embeddings, so it cannot judge a joint model.

    Args:
        path: The csv.
        images: The folder with a folder for each animal.
        name: Name in reports.
        factors: Which of "background", "size", "texture", "camera_yaw"; the first of them in this
            order gives the primary metric, `image/<factor>`.
        without: Animals to leave out; about 192 images of "Goldfish" are badly rendered.
        convention: See above.
        limit: At most so many animals, drawn with `seed`.
        seed: Seed of the draw and of the pairing.

    Raises:
        UserError: An argument is none of its values.
    """

    version: ClassVar[str] = "1"
    citation: ClassVar[str] = "Bordes et al. 2023, PUG, section 3.2, equations 1 and 2"
    source: ClassVar[str] = f"PUG_ANIMAL.tar.gz (78 GB), {SITE}"
    reads: Literal["scores", "embeddings"] = "embeddings"

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "pug_animals",
        factors: Sequence[str] = DESCRIBED,
        without: Sequence[str] = (),
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        check_options(convention, limit)
        if not factors or not set(factors) <= set(FACTORS):
            raise UserError(f"expected factors of {FACTORS}, got {list(factors)}: correct them")
        self.path = Path(path)
        self.folder = Path(images)
        self.name = name
        self.factors = tuple(factor for factor in FACTORS if factor in factors)
        self.without = frozenset(without)
        self.convention: Convention = convention
        self.limit = limit
        self.seed = seed
        self.primary = f"image/{self.factors[0]}"
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "PugAnimals":
        """The whole grid of two animals, three backgrounds, two sizes, textures and angles."""
        with (folder / "labels_pug_animal.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            worlds = ("Egypt", "VillageSquare", "Opera")
            grid = itertools.product(worlds, ("Cat", "GiantTortoise"), (0.7, 1.3), (0, 45))
            for i, ((world, animal, size, yaw), texture) in enumerate(
                itertools.product(grid, ("Default", "Sky"))
            ):
                (folder / animal).mkdir(exist_ok=True)
                writer.writerow([f"{i}.png", world, animal, size, yaw, texture])
                Image.new("RGB", (8, 8), (5 * i, 250 - 5 * i, i)).save(folder / animal / f"{i}.png")
        return cls(str(folder / "labels_pug_animal.csv"), str(folder))

    def load(self) -> None:
        """Reads the csv and finds the images; calling it again does nothing.

        Raises:
            UserError: The csv is not what it should be or has too few samples, or an image is
                missing.
        """
        if self._items is None:
            self._items = self._read()

    def images(self) -> tuple[ImageRef, ...]:
        """The images that the factors need."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"]:
        """Each image with its caption."""
        return torch.tensor(list(enumerate(self._loaded().captions)))

    def truth(self) -> Bool[Tensor, "P"]:
        """Each caption is true of its image."""
        return torch.ones(len(self._loaded().captions), dtype=torch.bool)

    def evaluate(self, scores: Float[Tensor, "P"] | Float[Tensor, "N M"]) -> Result:
        """Raises.

        Raises:
            UserError: Always; scores do not say how embeddings change.
        """
        raise self._needs_embeddings()

    def run(self, score: Score) -> Result:
        """Has everything embedded, and evaluates.

        Raises:
            UserError: `score` is not an `Embed`, or an embedding is missing, NaN or infinite.
        """
        self.load()
        if not isinstance(score, Embed):
            raise self._needs_embeddings()
        images = self._checked(score.embed_images(self.images()), len(self.images()))
        texts = self._checked(score.embed_texts(self.texts()), len(self.texts()))
        if images.shape[1] != texts.shape[1]:
            raise UserError(
                f"expected embeddings of one space for {self.name}, got widths {images.shape[1]} "
                f"and {texts.shape[1]}: use an adapter that projects both into one"
            )
        return self.evaluate_embeddings(images, texts)

    def evaluate_embeddings(
        self, images: Float[Tensor, "N d"], texts: Float[Tensor, "M d"]
    ) -> Result:
        """Turns the embeddings, in the order of `images` and `texts`, into numbers."""
        images, texts = normalize(images.double(), dim=1), normalize(texts.double(), dim=1)
        generator = torch.Generator().manual_seed(self.seed)
        metrics: dict[str, MetricValue] = {}
        series: dict[str, tuple[float, ...]] = {}
        for factor, samples in self._loaded().samples.items():
            for side, values in self._cosines(images, texts, samples, generator).items():
                degree = 1 if side == "across" else 2
                metrics[f"{side}/{factor}"] = mean_cosine(values, samples.clusters, degree)
                series[f"{side}/{factor}"] = tuple(values.tolist())
            if samples.left_out:
                metrics[f"left_out/{factor}"] = MetricValue(
                    float(samples.left_out),
                    samples.left_out + len(samples.clusters),
                    higher_is_better=False,
                    unit="count",
                )
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            citation=self.citation,
            convention=self.convention,
            outcomes=series[self.primary],
            clusters=tuple(self._loaded().samples[self.factors[0]].clusters.tolist()),
            degree=2,
            series=series,
        )

    def _cosines(
        self,
        images: Float[Tensor, "N d"],
        texts: Float[Tensor, "M d"],
        samples: Samples,
        generator: torch.Generator,
    ) -> dict[str, Float[Tensor, "n"]]:
        """Mean over changes of what each sample contributes to each kind of equivariance."""

        def aligned(differences: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
            if self.convention == "strict":
                return alignment(differences)
            return paired_alignment(differences, generator)

        n, values = samples.images.shape
        changes = list(itertools.combinations(range(values), 2))
        sides = ("image",) if samples.texts is None else ("image", "text", "across")
        totals = {side: torch.zeros(n, dtype=torch.float64) for side in sides}
        for b, other in changes:
            seen = images[samples.images[:, other]] - images[samples.images[:, b]]
            totals["image"] += aligned(seen)
            if samples.texts is not None:
                said = texts[samples.texts[:, other]] - texts[samples.texts[:, b]]
                totals["text"] += aligned(said)
                totals["across"] += agreement(seen, said)
        return {side: total / len(changes) for side, total in totals.items()}

    def _checked(self, rows: Float[Tensor, "n d"], wanted: int) -> Float[Tensor, "n d"]:
        if len(rows) != wanted or not bool(torch.isfinite(rows).all()):
            raise UserError(
                f"expected {wanted} finite embeddings for {self.name}, got {len(rows)}, of which "
                f"{int((~torch.isfinite(rows)).any(dim=1).sum())} have NaN or infinite numbers: "
                "lower the learning rate or use fp32, then evaluate again"
            )
        return rows.detach().cpu()

    def _needs_embeddings(self) -> UserError:
        return UserError(
            f"expected a model that embeds images and texts for {self.name}, got one that only "
            "scores pairs: evaluate it with a dual adapter, or leave this benchmark out"
        )

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        scenes = read_scenes(self.path)
        known = list(dict.fromkeys(scene.animal for scene in scenes))
        if unknown := self.without - set(known):
            raise UserError(
                f"expected animals of {self.path} in `without`, got {min(unknown)!r}: correct it"
            )
        animals = [animal for animal in known if animal not in self.without]
        kept = {animals[i] for i in drawn(len(animals), self.limit, self.seed)}
        turned = "camera_yaw" in self.factors
        scenes = [s for s in scenes if s.animal in kept and (turned or s.frontal)]
        texts = {text: j for j, text in enumerate(dict.fromkeys(s.caption for s in scenes))}
        captions = tuple(texts[scene.caption] for scene in scenes)
        samples = {
            factor: group_samples(factor, scenes, captions, self.path) for factor in self.factors
        }
        images = tuple(ImageRef(self.folder / scene.file) for scene in scenes)
        check_images(images, self)
        return _Items(images, tuple(texts), captions, samples)
