"""CREPE's csv files (Ma et al. 2023, sections 3 and 4).

In: rendered scenes. Out: rows of the files.
"""

import itertools
from collections.abc import Sequence
from itertools import product
from typing import Any

from data_builders.phrases import both, with_article
from data_builders.worlds.scenes.formats.context import SceneContext, SuiteScenes
from data_builders.worlds.scenes.formats.crepe_captions import NEGATIVES, Caption, sample_caption
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import Composition
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.statements import Noun

TYPES = tuple(NEGATIVES)
COMPLEXITIES = tuple(range(4, 13))
CORPUS = "laion"  # the pre-training corpus that stands for the world's training scenes
BOX = ("x", "y", "width", "height")
PRODUCTIVITY = ("image_id", "caption", "n", "n_objects", "n_relations", "n_attributes",
                "n_connected_components", "hard_negs", *BOX)  # fmt: skip
SYSTEMATICITY = ("region_id", "caption", *BOX, "image_id", "valid_hard_negs_atom",
                 "valid_hard_negs_comp", "valid_hard_negs_combined")  # fmt: skip
_HARD_NEGATIVES = 5  # a row
Row = tuple[Any, ...]  # in the order of the columns


def image_id(image: SceneImage) -> int:
    """Returns the number of an image: `VG_100K/<number>.jpg`."""
    return image.index + 1


def productivity(scenes: SuiteScenes, kind: str) -> dict[int, list[Row]]:
    """Returns rows of a type by number of atoms, at most `scenes.count` in all.

    Numbers of atoms take turns until no scene is left that can hold one more row of a number. A row
    has five negatives, all false of the image; its box is the whole image.
    """
    rows: dict[int, list[Row]] = {atoms: [] for atoms in COMPLEXITIES}
    possible = list(COMPLEXITIES)
    for k in itertools.count():
        if not possible or sum(map(len, rows.values())) == scenes.count:
            break
        atoms = possible[k % len(possible)]
        # Another scene begins in each turn, so that no scene has most of the rows.
        for step in range(len(scenes.images)):
            image = scenes.images[(k + step) % len(scenes.images)]
            context = scenes.context(image, f"crepe {kind}:{atoms}")
            row = _productivity_row(image, kind, atoms, context)
            if row is not None and row not in rows[atoms]:
                rows[atoms].append(row)
                break
        else:
            possible.remove(atoms)
    return rows


def _productivity_row(
    image: SceneImage, kind: str, atoms: int, context: SceneContext
) -> Row | None:
    caption = sample_caption(context, atoms)
    if caption is None:
        return None
    candidates = NEGATIVES[kind](caption, context.kinds, context.spec.shapes)
    false = (str(other) for other in candidates if other.holds(context.scene) is False)
    negatives = list(dict.fromkeys(false))
    if len(negatives) < _HARD_NEGATIVES:
        return None
    attributes = sum(len(noun.attributes) for noun in caption.nouns)
    hard = repr(context.rng.sample(negatives, _HARD_NEGATIVES))
    return (
        image_id(image), str(caption), atoms, len(caption.nouns), len(caption.edges), attributes,
        _components(caption), hard, *_whole(image),
    )  # fmt: skip


def _components(caption: Caption) -> int:
    labels = list(range(len(caption.nouns)))
    for i, _, j in caption.edges:
        # An edge joins two components: all nouns of the second take the label of the first.
        kept, absorbed = labels[i], labels[j]
        for k, label in enumerate(labels):
            if label == absorbed:
                labels[k] = kept
    return len(set(labels))


def systematicity(
    scenes: SuiteScenes, compounds: frozenset[Composition], colors: Sequence[str]
) -> list[Row]:
    """Returns rows about objects of the given (color, shape) compounds: "a red cube".

    Atom negatives replace one word, compound negatives spread both words over two absent objects.
    """

    def write(context: SceneContext) -> tuple[str, list[str], list[str]] | None:
        scene, rng = context.scene, context.rng
        objects = [o for o in scene.objects if (o.color, o.shape) in compounds]
        if not objects:
            return None
        noun = Noun.of(rng.choice(objects))
        recolored = [noun.replaced("color", color) for color in colors]
        recolored.remove(noun)
        reshaped = [noun.replaced("shape", shape) for shape in context.spec.shapes]
        reshaped.remove(noun)
        atom = [with_article(other) for other in _absent(scene, (*recolored, *reshaped))]
        comp = []
        for one, other in context.shuffled(list(product(reshaped, recolored))):
            # The order is drawn of each pair, so that no later draw depends on the scene.
            pair = (one, other) if rng.random() < 0.5 else (other, one)
            if len(_absent(scene, pair)) == 2:
                comp.append(both(*pair))
        if not atom or not comp:
            return None
        atom = rng.sample(atom, min(_HARD_NEGATIVES, len(atom)))
        comp = rng.sample(comp, min(_HARD_NEGATIVES, len(comp)))
        return with_article(noun), atom, comp

    rows: list[Row] = []
    for image, (caption, atom, comp) in scenes.rows("crepe systematicity", write):
        negatives = repr(atom), repr(comp), repr([*atom, *comp])
        rows.append((len(rows), caption, *_whole(image), image_id(image), *negatives))
    return rows


def _absent(scene: Scene, nouns: Sequence[Noun]) -> list[Noun]:
    return [noun for noun in nouns if noun.absent_from(scene)]


def _whole(image: SceneImage) -> tuple[int, int, int, int]:
    return 0, 0, image.size, image.size
