"""Tests of what training lacks.

In: a spec of training's words. Out: scenes, and tables of questions.

Each table changes one thing at a time. `wordings.csv` has training's words in sentences of forms
that no training text has; only "there is no torus" occurs there. `structures.csv` asks for
what the order of words does not tell: the colours of three objects, "between" and numbers.
`crowded.csv` has training's wording on scenes of four to eight objects of both sizes. `objects.csv`
and `abilities.csv` have words that the pre-trained model knows and that training never states, on
single objects. Files are in `held_out`, scene graphs in `clevr/scenes_held_out_<series>.json`,
images in `images/held_out`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import permutations
from pathlib import Path

from data_builders.phrases import INVERSE, PHRASES, both, with_article
from data_builders.text_files import csv_table, write_json
from data_builders.worlds.scenes.captions import counting, query
from data_builders.worlds.scenes.formats import clevr
from data_builders.worlds.scenes.formats.context import Form, SceneContext, Sentences, contexts
from data_builders.worlds.scenes.image_files import Images, SceneImage, Split, sub_seed
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, MAX_OBJECTS, SIZES, TEXTURES, Scene
from data_builders.worlds.scenes.series import SceneSeries
from data_builders.worlds.scenes.statements import Noun, relation_holds
from vlmtune.storage.files import write_text

COLUMNS = ("image", "caption", "negative", "group")


@dataclass(frozen=True)
class HeldOut:
    """The scenes and files of the tests, of `items` scenes with several objects.

    `trained` has the words and compositions of training, `world` those of all test scenes.
    """

    items: int
    trained: WorldSpec
    world: WorldSpec
    seed: int

    @cached_property
    def splits(self) -> dict[str, Split]:
        """The series to render and their files, by the name of the split."""
        sizes = tuple(SIZES)
        one = replace(self.world, min_objects=1, max_objects=1, sizes=sizes, textures=TEXTURES)
        many = replace(self.trained, min_objects=4, max_objects=MAX_OBJECTS, sizes=sizes)
        three = replace(self.trained, min_objects=3, max_objects=3)
        specs = {"scenes": self.trained, "triples": three, "crowded": many, "objects": one}
        splits = {}
        for name, spec in specs.items():
            split = f"held_out_{name}"
            count = -(-self.items // 2) if name == "objects" else self.items
            files = tuple(f"held_out/{split}_{k:06d}.png" for k in range(count))
            splits[split] = Split(SceneSeries(spec, sub_seed(self.seed, split)), files)
        return splits

    def write(self, folder: Path, images: Images) -> None:
        """Writes scene graphs and tables into the folder of the world."""
        for split in self.splits:
            write_json(folder / f"clevr/scenes_{split}.json", clevr.scenes(split, images[split]))
        scenes, triples = images["held_out_scenes"], images["held_out_triples"]
        structures = [*self._rows(scenes, {"counted": _counted}), *self._rows(triples, _STRUCTURES)]
        objects, abilities = [], []
        for image in images["held_out_objects"]:
            objects.append((image.file, with_article(described(image))))
            for true, false, group in abilities_of(image, self.world):
                abilities.append((image.file, true, json.dumps(false), group))
        tables = {
            "wordings": csv_table(COLUMNS, self._rows(scenes, FORMS)),
            "structures": csv_table(COLUMNS, structures),
            "crowded": csv_table(COLUMNS, self._rows(images["held_out_crowded"], TRAINED)),
            "objects": csv_table(COLUMNS[:2], objects),
            "abilities": csv_table(COLUMNS, abilities),
        }
        for name, text in tables.items():
            write_text(folder / f"held_out/{name}.csv", text)

    def _rows(
        self, images: Sequence[SceneImage], forms: Mapping[str, Form]
    ) -> Iterator[tuple[str, ...]]:
        """Yields at most one row of each form for each image: a true sentence and a false one."""
        for image, context in contexts(images, self.trained, self.seed, "wordings"):
            for group, write in forms.items():
                sentences = write(context)
                if sentences is not None:
                    yield image.file, *sentences, group


def _both_ways(context: SceneContext, template: str) -> Sentences | None:
    """A sentence of a relation, against the same with its two objects exchanged.

    `{a}` is an object, `{b}` another, `{phrase}` the relation and `{side}` the same without "of".
    """
    for first, name, second in context.one_way_relations():
        phrase = PHRASES[name]
        a, b, side = with_article(first), with_article(second), phrase.removesuffix(" of")
        true = template.format(a=a, b=b, phrase=phrase, side=side)
        return true, template.format(a=b, b=a, phrase=phrase, side=side)
    return None


def one_side(context: SceneContext, template: str) -> Sentences | None:
    """A sentence of a relation that `{holds}` and its inverse, against the two exchanged.

    "the {a} is not {fails} the {b}" gives "the red cube is not to the right of the blue sphere",
    which is on its left.
    """
    for first, name, second in context.one_way_relations():
        holds, fails = PHRASES[name], PHRASES[INVERSE[name]]
        true = template.format(a=first, b=second, holds=holds, fails=fails)
        return true, template.format(a=first, b=second, holds=fails, fails=holds)
    return None


def _two_relations(context: SceneContext, inverted: int) -> Sentences | None:
    """Writes "a red cube to the left of a blue sphere and behind a cone", one of them inverted."""
    nouns = [Noun.of(obj) for obj in context.scene.objects]
    for (i, name, j), (_, other, m) in context.two_relations():
        objects = nouns[i], nouns[j], nouns[m]
        names = [name, other]
        true = _stated_twice(objects, names)
        names[inverted] = INVERSE[names[inverted]]
        return true, _stated_twice(objects, names)
    return None


def _stated_twice(objects: tuple[Noun, Noun, Noun], names: Sequence[str]) -> str:
    subject, first, second = map(with_article, objects)
    return f"{subject} {PHRASES[names[0]]} {first} and {PHRASES[names[1]]} {second}"


def _predicated(first: Noun, second: Noun) -> str:
    """Writes "the cube is red and the sphere is blue"."""
    stated = [f"the {noun.shape} is {noun.get('color')}" for noun in (first, second)]
    return " and ".join(stated)


def _not_coloured(context: SceneContext) -> Sentences | None:
    """Writes "the cube is not blue" of a red one; blue cubes may be what training lacks."""
    for obj in context.sole_objects():
        others = [color for color in context.spec.colors if color != obj.color]
        other = context.rng.choice(others)
        return f"the {obj.shape} is not {other}", f"the {obj.shape} is not {obj.color}"
    return None


def _absent(context: SceneContext) -> Sentences | None:
    """Writes "there is no torus", against "there is no cube" of a cube."""
    shown = {obj.shape for obj in context.scene.objects}
    missing = [shape for shape in context.spec.shapes if shape not in shown]
    if not missing:
        return None
    present = context.rng.choice(sorted(shown))
    return f"there is no {context.rng.choice(missing)}", f"there is no {present}"


def _three_objects(context: SceneContext) -> Sentences | None:
    """Writes "a red cube, a blue cone and a gray torus", against other orders of the colours.

    The wording is that of training, "a red cube and a blue cone and a gray torus".
    """
    objects = context.shuffled(context.scene.objects)[:3]
    shapes = [obj.shape for obj in objects]
    colors = [obj.color for obj in objects]
    if len(set(shapes)) < 3 or len(set(colors)) < 3:
        return None
    sentences = []
    for order in permutations(colors):
        nouns = [Noun(s, (("color", c),)) for s, c in zip(shapes, order, strict=True)]
        if context.allows(*nouns):
            sentences.append(" and ".join(map(with_article, nouns)))
    # The first order is the scene's.
    true, *false = sentences
    return (true, json.dumps(false)) if false else None


def between(context: SceneContext) -> Sentences | None:
    """Writes "a red cube between a cone and a torus", against "a cone between ..." of the ends."""
    nouns = [Noun.of(obj) for obj in context.scene.objects]
    for middle, first, second in context.shuffled(list(permutations(nouns, 3))):
        lies = _lies_between(context.scene, middle, first, second, clear=True)
        if lies and not _lies_between(context.scene, first, middle, second, clear=False):
            a, b, c = map(with_article, (middle, first, second))
            return f"{a} between {b} and {c}", f"{b} between {a} and {c}"
    return None


def _lies_between(scene: Scene, middle: Noun, first: Noun, second: Noun, clear: bool) -> bool:
    """Whether the middle has opposite relations to the two, which stand out where `clear`."""
    for name in GROUND_RELATIONS:
        both_sides = (
            relation_holds(scene, middle, name, first),
            relation_holds(scene, middle, INVERSE[name], second),
        )
        # None is a relation that neither stands out nor is false.
        if all(side or (side is None and not clear) for side in both_sides):
            return True
    return False


def _counted(context: SceneContext) -> Sentences | None:
    """Writes "in the picture are three objects", against one more or less that other scenes have.

    Where scenes have two or three objects, preferring either number is right half of the time.
    """
    number = len(context.scene.objects)
    numbers = range(context.spec.min_objects, context.spec.max_objects + 1)
    near = [n for n in (number - 1, number + 1) if n in numbers]
    if not near:
        return None
    other = context.rng.choice(near)
    texts = [counting(n, None).removeprefix("there ") for n in (number, other)]
    true, false = (f"in the picture {text}" for text in texts)
    return true, false


_STRUCTURES: Mapping[str, Form] = {
    "three objects": _three_objects,
    "between": between,
}
# "a red cube and a blue sphere" and "a red cube behind a cone", as training writes them.
TRAINED: Mapping[str, Form] = {
    "colours": partial(SceneContext.exchanged, write=both),
    "relations": partial(_both_ways, template="{a} {phrase} {b}"),
}
FORMS: Mapping[str, Form] = {
    "inverted": partial(_both_ways, template="{phrase} {b} is {a}"),
    "the thing": partial(_both_ways, template="the thing {phrase} {b} is {a}"),
    "reference first": partial(_both_ways, template="{b} with {a} {side}"),
    "not related": partial(one_side, template="the {a} is not {fails} the {b}"),
    "first of two relations": partial(_two_relations, inverted=0),
    "second of two relations": partial(_two_relations, inverted=1),
    "predicate": partial(SceneContext.exchanged, write=_predicated),
    "not coloured": _not_coloured,
    "absent": _absent,
}


def described(image: SceneImage) -> str:
    """The object's words; "plain" is never stated."""
    kinds = ["size", "color"]
    if image.scene.objects[0].texture != "plain":
        kinds.append("texture")
    return query(image.scene.objects[0], kinds)


def abilities_of(image: SceneImage, spec: WorldSpec) -> Iterator[tuple[str, list[str], str]]:
    """Yields a caption, all false ones and their group: size, texture or shape of an object."""
    obj = image.scene.objects[0]
    textures = [texture for texture in TEXTURES if texture != "plain"]
    questions = {
        "size": (f"a photo of a {{}} {obj.shape}", obj.size, list(SIZES)),
        "texture": (f"a photo of a {{}} {obj.shape}", obj.texture, textures),
        "shape": ("an image of a {}", obj.shape, list(spec.shapes)),
    }
    for group, (sentence, value, values) in questions.items():
        if value in values:
            false = [sentence.format(other) for other in values if other != value]
            yield sentence.format(value), false, group
