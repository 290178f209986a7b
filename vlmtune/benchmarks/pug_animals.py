"""PUG: Animals: tests whether embeddings change alike where an animal or its background changes.

In: the csv, and embeddings of its images and captions. Out: mean cosines. Never: scores.

Files: `labels_pug_animal.csv` with the columns filename, world_name, character_name,
character_scale, camera_yaw and character_texture; an image is `<character_name>/<filename>` under
the folder. 70 animals x 64 backgrounds x 3 sizes x 4 textures x 4 camera angles = 215,040.
Source: Bordes et al. 2023, PUG, section 3.2 and appendices B.2 and C.1.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, Convention
from vlmtune.benchmarks.files import read_csv, write_csv, write_image
from vlmtune.benchmarks.items import Items, numbered
from vlmtune.benchmarks.pair_scorer import MatrixFunction, PairScorer, embed
from vlmtune.benchmarks.pug_files import spoken
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import mean_cosine
from vlmtune.metrics.equivariance import agreement, alignment, paired_alignment
from vlmtune.results.metric_value import MetricValue, count
from vlmtune.results.result import Result
from vlmtune.storage.files import reading
from vlmtune.types import ImageRef

SIZES = {0.7: "small", 1.0: "medium", 1.3: "big"}
COLUMNS = (
    *("filename", "world_name", "character_name"),
    *("character_scale", "camera_yaw", "character_texture"),
)
FACTORS = ("background", "size", "texture", "camera_yaw")
DESCRIBED = FACTORS[:3]  # by the captions


@dataclass(frozen=True)
class AnimalScene:
    """A row: its image file, the animal, and the value of each of `FACTORS`."""

    file: str
    animal: str
    values: tuple[str, str, str, str]

    @property
    def frontal(self) -> bool:
        """Whether the camera looks at the animal from the front."""
        return self.values[3] == "0"

    @property
    def caption(self) -> str:
        """The paper's caption; a texture is named unless it is the animal's own."""
        world, size, texture, _ = self.values
        animal = spoken(self.animal)
        if texture != "Default":
            animal += f" textured with {spoken(texture)}"
        return f"A photo of a {size} sized {animal} on a {spoken(world)} background"


@dataclass(frozen=True)
class Samples:
    """n samples, each with all v values of one factor; samples differ in the other factors."""

    images: Int[Tensor, "n v"]
    # Numbers of their captions; None where captions do not tell the values apart
    texts: Int[Tensor, "n v"] | None
    clusters: Int[Tensor, "n"]  # number of the animal of each sample
    left_out: int  # how many samples lack a value


def read_scene(path: str, values: Mapping[str, str]) -> AnimalScene:
    """Turns a row of the csv at `path` into a scene."""
    layout = f"a character_scale of {list(SIZES)} and a camera_yaw in each row"
    with reading(path, layout, "pass PUG: Animals' csv"):
        size = SIZES[float(values["character_scale"])]
        angle = f"{float(values['camera_yaw']):g}"
    animal = values["character_name"]
    return AnimalScene(
        file=f"{animal}/{values['filename']}",
        animal=animal,
        values=(values["world_name"], size, values["character_texture"], angle),
    )


def group_samples(
    factor: str, scenes: Sequence[AnimalScene], captions: Int[Tensor, "N"], path: str
) -> Samples:
    """Groups the scenes that differ in one factor only."""
    position = FACTORS.index(factor)
    described = factor in DESCRIBED
    # Views from the side serve the camera's angle alone, which no caption tells.
    usable = [i for i, scene in enumerate(scenes) if scene.frontal or not described]
    values = list(dict.fromkeys(scenes[i].values[position] for i in usable))
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for i in usable:
        scene = scenes[i]
        others = list(scene.values)
        value = others.pop(position)
        group = groups.setdefault((scene.animal, *others), {})
        if group.setdefault(value, i) != i:
            raise UserError(
                f"expected each combination of factors once in {path}, got "
                f"{scene.caption!r} twice: download it again"
            )
    # A sample lacks a value where the file lacks its image.
    rows = []
    animals = []
    for (animal, *_), group in groups.items():
        if len(group) == len(values):
            rows.append([group[value] for value in values])
            animals.append(animal)
    if len(values) < 2 or len(rows) < 2:
        raise UserError(
            f"expected two samples with at least two values of {factor} in {path}, got "
            f"{len(rows)} with {len(values)}: pass the whole csv, or leave the factor out"
        )
    images = torch.tensor(rows)
    texts = captions[images] if described else None
    _, clusters = numbered(animals)
    return Samples(images, texts, clusters, left_out=len(groups) - len(rows))


@dataclass(frozen=True)
class AnimalItems(Items):
    """The images with their captions, and the samples of each factor."""

    samples: dict[str, Samples]

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        return torch.arange(len(self.clusters))


class PugAnimals(Benchmark[AnimalItems]):
    r"""Equivariance of image embeddings, of text embeddings, and across both, by factor.

    A sample is an animal with all its factors but one. For each change of that one from b to b',
    $\delta_i = f(i, b') - f(i, b)$ are the differences of normalised embeddings, and

    - `image/<factor>` is the mean cosine of $\delta^{image}_i$ and $\delta^{image}_j$,
    - `text/<factor>` that of $\delta^{text}_i$ and $\delta^{text}_j$,
    - `across/<factor>` that of $\delta^{image}_i$ and $\delta^{text}_i$,

    over samples and then over changes (both directions of a change give the same). Vectors with
    nothing in common reach 0. `series` has the mean of each sample; intervals count animals.

    Captions are "A photo of a [size] sized [animal] textured with [texture] on a [background]
    background", without the texture where it is Default; sizes 0.7, 1.0 and 1.3 are small, medium
    and big. Names are split into words, as the paper writes "village square". The camera's angle is
    in no caption: other factors are studied from the front only (53,760 images), and `camera_yaw`
    (all images) has only `image/camera_yaw`.

    Conventions: "strict" takes all pairs of samples, exactly; "reference" pairs them at random, as
    appendix C.1 says (no script is published), with `seed`.

    Args:
        images: The folder with a folder for each animal.
        factors: Which of "background", "size", "texture", "camera_yaw"; the first of them in this
            order gives the primary metric, `image/<factor>`.
        without: Animals to leave out; about 192 images of "Goldfish" are badly rendered.
        convention: See above; `limit` counts animals.
    """

    full_name = "PUG: Animals"
    asks = "changes of an image"
    citation = "Bordes et al. 2023, PUG, section 3.2, equations 1 and 2"
    source = "vlmtune download pug_animals"
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"factors": FACTORS}

    path: str
    images: str
    factors: Sequence[str] = DESCRIBED
    without: Sequence[str] = ()
    convention: Convention = "strict"

    @property
    @override
    def needs(self) -> Literal["scores", "embeddings"]:
        return "embeddings"

    @property
    @override
    def primary(self) -> str:
        first = next(factor for factor in FACTORS if factor in self.factors)
        return f"image/{first}"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "PugAnimals":
        worlds = ("Egypt", "VillageSquare", "Opera")
        animals = ("Cat", "GiantTortoise")
        sizes = (0.7, 1.3)
        angles = (0, 45)
        textures = ("Default", "Sky")
        rows = []
        scenes = itertools.product(worlds, animals, sizes, angles, textures)
        for i, (world, animal, *others) in enumerate(scenes):
            file = f"{i}.png"
            rows.append((file, world, animal, *others))
            write_image(folder / str(animal) / file, 5 * i, 250 - 5 * i, i)
        return cls(write_csv(folder / "labels_pug_animal.csv", COLUMNS, rows), str(folder))

    @override
    def read(self) -> list[dict[int, AnimalScene]]:
        """Reads the scenes of each animal, by row of the csv."""
        animals: dict[str, dict[int, AnimalScene]] = {}
        rows = read_csv(self.path, COLUMNS, self.source)
        for number, row in enumerate(rows):
            scene = read_scene(self.path, row)
            scenes_of_animal = animals.setdefault(scene.animal, {})
            scenes_of_animal[number] = scene
        # A misspelt animal would stay in, and nobody would notice.
        unknown = set(self.without) - set(animals)
        if unknown:
            raise UserError(f"expected animals of {self.path} in `without`, got {min(unknown)!r}")
        return [scenes for animal, scenes in animals.items() if animal not in self.without]

    @override
    def arrange(self, items: Sequence[dict[int, AnimalScene]]) -> AnimalItems:
        turned = "camera_yaw" in self.factors
        rows: dict[int, AnimalScene] = {}
        for scenes_of_animal in items:
            rows |= scenes_of_animal
        scenes = []
        for number in sorted(rows):  # the order of the file
            scene = rows[number]
            # Views from the side serve the camera's angle alone.
            if turned or scene.frontal:
                scenes.append(scene)
        texts, captions = numbered(scene.caption for scene in scenes)
        _, animals = numbered(scene.animal for scene in scenes)
        samples = {}
        for factor in FACTORS:
            if factor in self.factors:
                samples[factor] = group_samples(factor, scenes, captions, self.path)
        images = [ImageRef(Path(self.images, scene.file)) for scene in scenes]
        # Each image with its caption: all pairs are true.
        pairs = torch.stack([torch.arange(len(scenes)), captions], dim=1)
        return AnimalItems(
            images=tuple(images),
            texts=texts,
            pairs=pairs,
            clusters=animals,
            compared=(),
            samples=samples,
        )

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        raise UserError(
            f"expected embeddings for {self.name}, got scores, which do not say how embeddings "
            "change: evaluate it with a dual adapter, or leave it out"
        )

    @override
    def run(self, score: PairScorer | MatrixFunction) -> Result:
        return self.evaluate_embeddings(*embed(score, self.items, self.name))

    def evaluate_embeddings(
        self, images: Float[Tensor, "N d"], texts: Float[Tensor, "M d"]
    ) -> Result:
        """Turns the embeddings, in the order of the images and texts, into numbers."""
        images = normalize(images.double(), dim=1)
        texts = normalize(texts.double(), dim=1)
        # One generator for all factors: the pairs of a factor are not those of the one before.
        generator = torch.Generator().manual_seed(self.seed or 0)  # a seed of null is 0
        metrics: dict[str, MetricValue] = {}
        series: dict[str, tuple[float, ...]] = {}
        for factor, samples in self.items.samples.items():
            cosines = self._cosines(images, texts, samples, generator)
            for side, values in cosines.items():
                # Within a side the cosine of a sample is a mean over pairs with other samples.
                degree = 1 if side == "across" else 2
                key = f"{side}/{factor}"
                metrics[key] = mean_cosine(values, samples.clusters, degree)
                series[key] = tuple(values.tolist())
            left_out = samples.left_out
            if left_out:
                total = left_out + len(samples.clusters)
                metrics[f"left_out/{factor}"] = count(left_out, total)
        # The first factor gives the primary metric.
        first, *_ = self.items.samples.values()
        outcomes = torch.tensor(series[self.primary], dtype=torch.float64)
        return self.result(metrics, outcomes, first.clusters, degree=2, series=series)

    def _cosines(
        self,
        images: Float[Tensor, "N d"],
        texts: Float[Tensor, "M d"],
        samples: Samples,
        generator: torch.Generator,
    ) -> dict[str, Float[Tensor, "n"]]:
        """Mean over changes of what each sample contributes to each kind of equivariance."""

        def aligned(differences: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
            if self.strict:
                return alignment(differences)
            return paired_alignment(differences, generator)

        sample_count, value_count = samples.images.shape
        sides = ["image"]
        if samples.texts is not None:
            sides += ["text", "across"]
        totals = {side: torch.zeros(sample_count, dtype=torch.float64) for side in sides}
        # Each change once: back from b' to b both differences turn around, and cosines stay.
        changes = list(itertools.combinations(range(value_count), 2))
        for b, other in changes:
            before = images[samples.images[:, b]]
            after = images[samples.images[:, other]]
            image_change = after - before
            totals["image"] += aligned(image_change)  # summed over changes, divided at the end
            if samples.texts is not None:
                before = texts[samples.texts[:, b]]
                after = texts[samples.texts[:, other]]
                text_change = after - before
                totals["text"] += aligned(text_change)
                totals["across"] += agreement(image_change, text_change)
        return {side: total / len(changes) for side, total in totals.items()}
