"""PUG: SPAR: scenes, positions, attributes and relations of one or two animals, step by step.

Files: `labels.csv` with the columns filename, world_name, character_name, character2_name,
character1_pos, character2_pos, character_texture, character2_texture, and the images it names:
10 backgrounds x 33 x 33 (32 animals or "blank") x 4 groups (Default left/right, Default bottom/top,
Blue/Red left/right, Grass/Stone left/right) = 43,560. Source: Bordes et al. 2023, section 3.4.
"""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import (
    Benchmark,
    Convention,
    Score,
    check_images,
    check_scores,
    distinct_pairs,
)
from vlmtune.benchmarks.pug_files import SITE, check_options, drawn, read_rows
from vlmtune.benchmarks.pug_spar_blocks import (
    Block,
    Ranked,
    accuracies,
    gallery,
    listed,
    numbers,
    rank,
    recall,
)
from vlmtune.benchmarks.pug_spar_setups import (
    BLANK,
    COLUMNS,
    DEFINITIONS,
    HARD,
    SetUp,
    as_row,
    coins,
    make,
)
from vlmtune.benchmarks.repeats import Item
from vlmtune.errors import UserError
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

Task = Literal["hard_negatives", "retrieval"]


@dataclass(frozen=True)
class _Items:
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    blocks: tuple[Block, ...]


class PugSpar(Benchmark):
    """Which caption is the image's: among all of its set-up, or against its hard negative.

    Set-ups (images in all worlds; candidates with the background in the caption):

    - `scene` (40; 10): the background alone;
    - `single_default` (1,280; 330), `single_blue_red`, `single_grass_stone` (640; 330): one animal;
    - `single_left_right`, `single_bottom_top` (640; 640): one animal and where it is;
    - `double_default` (20,480; 5,280), `double_blue_red`, `double_grass_stone` (10,240; 5,280):
      two animals, in any order;
    - `double_left_right`, `double_bottom_top` (9,920; 9,920): two animals and where they are;
    - `attributes_blue_red`, `attributes_grass_stone` (9,920; 9,920): two animals with textures.

    Task "hard_negatives" (table 2) has two candidates for each image of the six set-ups with
    positions or attributes: the other side for one animal, the animals exchanged for two; chance
    1/2. Task "retrieval" has all captions of the set-up (figure 6; table 11 with the world
    "SaltFlats" and no background); chance 1 over their number. Metrics: `accuracy/<set-up>` (top-1)
    and, for retrieval, `recall@5/<set-up>`; `accuracy` over all, an image counting once in each
    set-up it is in, and `macro_accuracy`, the mean over set-ups (the paper prints neither).
    Intervals of `scene` resample backgrounds, all others images.

    Conventions:

    - "strict": every row, a tie is never a win, no coin.
    - "reference", as the published script: `scene` has the first ten rows; the first of tied
      candidates wins, in the order of the script (where that is a set's and differs from run to
      run, in order of appearance); a coin puts the true caption or its negative first. The coins
      are those of the script's whole run (see `pug_spar_setups.coins`), with `seed` 0 the
      published ones. Its keys `..._one_objects_Grass_relations_left_...` and `..._bottom_...` are
      `single_left_right` and `single_bottom_top`: "Grass" is left over from the loop before, the
      rows are Default. Its top-5 of hard negatives is its top-1.

    Both keep the script's candidates, so one that is never true, "This is a photo of a blank",
    stands among those of the three sets of single animals without position (33 names, not 32).

    The published numbers of CLIP and OpenCLIP come from images resized to 224 x 224 (bilinear) and
    normalised with ImageNet's mean and deviation instead of the model's own preprocessing, and from
    cosines in half precision. Both belong to the backbone: this benchmark hands over files. For the
    former give `OpenClip` the `preprocessing` that `configs/plugins/benchmarks/pug_spar.yaml` has.

    Retrieval of several set-ups is scored set-up by set-up, each as a full bank: `pairs()` of all
    would be 600 million. A joint model, which pays for each pair, can do the hard negatives.

    Args:
        path: `labels.csv`.
        images: The folder with the image files.
        name: Name in reports.
        task: See above.
        setups: Which set-ups; None for all that the task has (with one world all but `scene`).
        world: Only the images of this background, such as "SaltFlats" (table 11).
        background: Whether captions name the background; candidates then name each.
        convention: See above.
        limit: At most so many images of each set-up, drawn with `seed`; candidates stay.
        seed: Seed of `limit` and of the coins.

    Raises:
        UserError: An argument is none of its values.
    """

    version: ClassVar[str] = "1"
    primary: str = "accuracy"
    citation: ClassVar[str] = "Bordes et al. 2023, PUG, section 3.4, figure 6, tables 2 and 11"
    source: ClassVar[str] = f"PUG_SPAR.tar.gz (16 GB), {SITE}"

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "pug_spar",
        task: Task = "hard_negatives",
        setups: list[str] | None = None,
        world: str | None = None,
        background: bool = True,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        check_options(convention, limit)
        self.path = Path(path)
        self.folder = Path(images)
        self.name = name
        self.task = task
        self.setups = _setups(task, setups, world)
        self.world = world
        self.background = background
        self.convention: Convention = convention
        self.limit = limit
        self.seed = seed
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "PugSpar":
        """The whole grid of two backgrounds and two animals: 72 images."""
        sides = [("left", "right"), ("bottom", "top"), ("left", "right"), ("left", "right")]
        looks = [("Default", "Default")] * 2 + [("Blue", "Red"), ("Grass", "Stone")]
        animals = (BLANK, "Goldfish", "GiantTortoise")
        with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*COLUMNS[:5], "character2_pos", *COLUMNS[5:]])
            grid = itertools.product(range(4), animals, animals, ("Desert", "SaltFlats"))
            for i, (group, first, second, world) in enumerate(grid):
                (one, other), look = sides[group], looks[group]
                writer.writerow([f"{i}.png", world, first, second, one, other, *look])
                Image.new("RGB", (8, 8), (3 * i, 255 - 3 * i, i)).save(folder / f"{i}.png")
        return cls(str(folder / "labels.csv"), str(folder))

    def load(self) -> None:
        """Reads the csv and finds the images of the set-ups; calling it again does nothing.

        Raises:
            UserError: The csv lacks a column, the world or a set-up, or an image is missing.
        """
        if self._items is None:
            self._items = self._read()

    def images(self) -> tuple[ImageRef, ...]:
        """The distinct images of the set-ups, in order of first appearance."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions, in order of first appearance."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"] | None:
        """Each image with its candidates; None for retrieval within one set-up."""
        return None if self._is_bank() else self._places()[0]

    def truth(self) -> Bool[Tensor, "P"] | Bool[Tensor, "N M"]:
        """The caption of the image."""
        blocks = self._loaded().blocks
        if self._is_bank():
            shape = blocks[0].columns.shape
            return torch.zeros(shape, dtype=torch.bool).scatter_(1, blocks[0].true[:, None], True)
        pairs, places = self._places()
        truth = torch.zeros(len(pairs), dtype=torch.bool)
        for block, where in zip(blocks, places, strict=True):
            truth[where.gather(1, block.true[:, None])] = True
        return truth

    def compared_items(self) -> tuple[Item, ...]:
        """Each image with its caption and, where there are hard negatives, the wrong one."""
        items, hard = self._loaded(), self.task == "hard_negatives"
        return tuple(
            item
            for block in items.blocks
            for item in listed(block, items.images, items.texts, hard)
        )

    def evaluate(self, scores: Float[Tensor, "P"] | Float[Tensor, "N M"]) -> Result:
        """Ranks the true caption of each image among its candidates."""
        blocks = self._loaded().blocks
        if self._is_bank():
            return self._result([rank(scores, blocks[0], self.convention)])
        places = self._places()[1]
        return self._result(
            [
                rank(scores[at], block, self.convention)
                for block, at in zip(blocks, places, strict=True)
            ]
        )

    def run(self, score: Score) -> Result:
        """See `Benchmark`; the set-ups of a retrieval are scored one after the other."""
        items = self._loaded()
        if self.task == "hard_negatives" or self._is_bank():
            return super().run(score)
        ranked = []
        for block in items.blocks:
            images = [items.images[i] for i in block.images.tolist()]
            texts = [items.texts[j] for j in block.columns[0].tolist()]
            scores = score(images, texts).detach().cpu()
            check_scores(scores, tuple(block.columns.shape), f"{block.name} of {self.name}")
            ranked.append(rank(scores, block, self.convention))
        return self._result(ranked)

    def _is_bank(self) -> bool:
        """Whether all images are scored against all texts: their order is then the block's."""
        return self.task == "retrieval" and len(self.setups) == 1

    def _places(self) -> tuple[Int[Tensor, "P 2"], list[Int[Tensor, "_ _"]]]:
        """The distinct pairs, and where those of each set-up are among them."""
        blocks = self._loaded().blocks
        rows = torch.cat([b.images[:, None].expand_as(b.columns).flatten() for b in blocks])
        pairs, where = distinct_pairs(rows, torch.cat([b.columns.flatten() for b in blocks]))
        parts = where.split([b.columns.numel() for b in blocks])
        return pairs, [part.view(b.columns.shape) for part, b in zip(parts, blocks, strict=True)]

    def _result(self, ranked: Sequence[Ranked]) -> Result:
        blocks = self._loaded().blocks
        keys = {"accuracy": 1} if self.task == "hard_negatives" else {"accuracy": 1, "recall@5": 5}
        metrics = accuracies(blocks, ranked)
        for block, own in zip(blocks, ranked, strict=True):
            metrics |= {f"{key}/{block.name}": recall(block, own, k) for key, k in keys.items()}
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=self._examples(ranked),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(torch.cat([own.hits for own in ranked]).tolist()),
            clusters=tuple(torch.cat([block.images for block in blocks]).tolist()),
        )

    def _examples(self, ranked: Sequence[Ranked]) -> tuple[Example, ...]:
        items = self._loaded()
        return tuple(
            example
            for block, own in zip(items.blocks, ranked, strict=True)
            for example in gallery(block, own, items.images, items.texts)
        )

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        rows = [as_row(values) for values in read_rows(self.path, COLUMNS)]
        worlds = dict.fromkeys(row.world for row in rows)
        if self.world is not None and self.world not in worlds:
            raise UserError(
                f"expected a world of {self.path} ({', '.join(worlds)}), got {self.world!r}: "
                "choose one, or leave it out"
            )
        compared = [row for row in rows if self.world in (None, row.world)]
        published = self.convention == "reference"
        setups = [make(name, compared, self.background, published) for name in self.setups]
        swaps = coins(rows, self.world, self.background, self.seed) if published else {}
        images: dict[str, int] = {}
        texts: dict[str, int] = {}
        blocks = tuple(self._block(setup, swaps, images, texts) for setup in setups)
        refs = tuple(ImageRef(self.folder / file) for file in images)
        check_images(refs, self)
        return _Items(refs, tuple(texts), blocks)

    def _block(
        self,
        setup: SetUp,
        swaps: dict[str, list[bool]],
        images: dict[str, int],
        texts: dict[str, int],
    ) -> Block:
        """Numbers the images and captions of a set-up, adding new ones."""
        kept = drawn(len(setup.rows), self.limit, self.seed)
        files = [setup.rows[i].file for i in kept]
        if len(set(files)) < len(files):
            raise UserError(f"expected each filename once in {self.path}: download it again")
        if self.task == "hard_negatives":
            assert setup.negatives is not None
            chosen = [(setup.captions[i], setup.negatives[i]) for i in kept]
            second = [swaps[setup.name][i] if swaps else False for i in kept]
            shown = [
                pair[::-1] if swap else pair for pair, swap in zip(chosen, second, strict=True)
            ]
            columns = torch.tensor([numbers(pair, texts) for pair in shown])
            true = torch.tensor(second).long()
        else:
            place = {caption: j for j, caption in enumerate(setup.candidates)}
            true = torch.tensor([place[setup.captions[i]] for i in kept])
            columns = torch.tensor(numbers(setup.candidates, texts)).expand(len(kept), -1)
        shared = [
            setup.rows[i].world if setup.name == "scene" else setup.rows[i].file for i in kept
        ]
        clusters = torch.tensor(numbers(shared, {}))
        return Block(setup.name, torch.tensor(numbers(files, images)), columns, true, clusters)


def _setups(task: str, setups: list[str] | None, world: str | None) -> tuple[str, ...]:
    """The set-ups that are asked for, in the published order."""
    if task not in get_args(Task):
        raise UserError(f"expected a task of {get_args(Task)}, got {task!r}: choose one")
    known = HARD if task == "hard_negatives" else tuple(DEFINITIONS)
    # One background is nothing to tell apart.
    known = tuple(name for name in known if world is None or name != "scene")
    wanted = known if setups is None else setups
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise UserError(
            f"expected set-ups of the task {task!r} ({', '.join(known)}), got "
            f"{repr(unknown[0]) if unknown else 'none'}: correct `setups`"
        )
    return tuple(name for name in known if name in wanted)
