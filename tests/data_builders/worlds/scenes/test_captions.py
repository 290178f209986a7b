import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from data_builders.phrases import ATTRIBUTE_ORDER, INVERSE, PHRASES
from data_builders.worlds.scenes import captions
from data_builders.worlds.scenes.sampling import WorldSpec, relations, sample_scene
from data_builders.worlds.scenes.scene import COLORS, SHAPES, Scene, camera
from data_builders.worlds.scenes.statements import Noun, relation_holds, stated_attributes
from scripts.pretrain_scenes_clip import prompt_caption, web_caption

SPEC = WorldSpec(min_objects=1, max_objects=5, stack_probability=0.5)
SCENES = [sample_scene(SPEC, random.Random(k)) for k in range(60)]


def _differ(scene: Scene) -> bool:
    a, b = scene.objects
    return a.color != b.color and a.shape != b.shape


TWO = WorldSpec(min_objects=2, max_objects=2)
# Two objects of different colours and shapes.
DIFFERENT = next(filter(_differ, (sample_scene(TWO, random.Random(k)) for k in range(100))))


def exchanged(scene: Scene) -> Scene:
    a, b = scene.objects
    return replace(scene, objects=(replace(a, color=b.color), replace(b, color=a.color)))


def test_every_caption_is_in_the_vocabulary():
    words = set(captions.vocabulary())
    rng = random.Random(0)
    for scene in SCENES:
        texts = captions.sentences(scene, rng)
        for _ in range(10):
            texts += [web_caption(scene, rng), prompt_caption(scene, rng)]
        texts += [captions.query(thing, ATTRIBUTE_ORDER) for thing in scene.objects]
        assert not {w for text in texts for w in text.split()} - words
    assert all(word == word.lower() and " " not in word for word in words)
    assert len(words) == len(captions.vocabulary())


def test_neither_plain_nor_what_all_objects_have_is_stated():
    spec = WorldSpec(textures=("plain", "striped"), materials=("metal",))
    stated = stated_attributes(spec)
    assert [*stated] == ["color", "size", "texture"]
    assert stated["texture"] == ("striped",)


def test_nine_objects_or_more_are_not_counted_in_words():
    spec = replace(SPEC, clevr=True, min_objects=10, max_objects=10)
    for seed in range(4):
        rng = random.Random(seed)
        texts = captions.sentences(sample_scene(spec, rng), rng)
        assert len(set(texts)) == 5
        assert not [text for text in texts if "there" in text]


def naive_relation(scene: Scene, i: int, j: int) -> set[str]:
    """Relations of i to j by CLEVR's rule."""
    table = relations(scene)
    return {name for name in table if i in table[name][j]}


def test_clear_relations_are_true_and_inverse():
    seen = Counter()
    for scene in SCENES:
        for i, j in permutations(range(len(scene.objects)), 2):
            relation = captions.clear_relation(scene, i, j)
            if relation is not None:
                seen[relation] += 1
                assert relation in naive_relation(scene, i, j)
                assert captions.clear_relation(scene, j, i) == INVERSE[relation]
    assert set(seen) == set(PHRASES) - {"above", "below"}  # nothing floats
    # A relation that is hardly so is not stated.
    obj = SCENES[0].objects[0]
    right = camera().axes["right"]
    near = replace(obj, center=(0.5 * right[0], 0.5 * right[1], 0.5))
    far = replace(obj, center=(0.7 * right[0], 0.7 * right[1], 0.5))
    origin = replace(obj, center=(0.0, 0.0, 0.5))
    assert captions.clear_relation(Scene((near, origin)), 0, 1) is None
    assert captions.clear_relation(Scene((far, origin)), 0, 1) == "right"


def test_a_floating_object_is_above_and_a_stacked_one_is_on():
    base = replace(SCENES[0].objects[0], shape="cube", center=(0.5, 1.0, 0.5), radius=0.75, on=None)
    ball = replace(base, shape="sphere", radius=0.5)
    top = replace(ball, center=(0.5, 1.0, 0.5 + 0.75 * 0.5**0.5 + 0.5), on=0)
    floating = replace(ball, center=(0.6, 1.0, 2.2))
    aside = replace(ball, center=(0.9, 1.0, 2.2))
    for other, names in ((top, ("on", "under")), (floating, ("above", "below")), (aside, None)):
        scene = Scene((base, other))
        if names is None:
            assert captions.clear_relation(scene, 1, 0) not in ("above", "on")
            continue
        assert captions.clear_relation(scene, 1, 0) == names[0]
        assert captions.clear_relation(scene, 0, 1) == names[1]
    # What stands on another object is not said not to be above it.
    nouns = Noun("sphere"), Noun("cube")
    stacked, hanging = Scene((base, top)), Scene((base, floating))
    assert relation_holds(stacked, nouns[0], "on", nouns[1]) is True
    assert relation_holds(stacked, nouns[0], "above", nouns[1]) is None
    assert relation_holds(stacked, nouns[0], "below", nouns[1]) is False
    assert relation_holds(hanging, nouns[0], "above", nouns[1]) is True
    assert relation_holds(hanging, nouns[0], "on", nouns[1]) is False
    assert relation_holds(hanging, nouns[1], "under", nouns[0]) is False


def test_placements_state_sides_on_which_objects_are():
    rng, spec, sides = random.Random(5), WorldSpec(), Counter()
    for _ in range(300):
        scene = sample_scene(spec, rng)
        sentence = captions.placement(scene, rng)
        if sentence is None:
            continue
        assert set(sentence.split()) <= set(captions.vocabulary())
        sentence, _, where = sentence.partition(" of the picture")
        assert where in ("", f" in a {scene.floor} environment")
        for part in re.sub("^(this is )?a photo of ", "", sentence).split(" and "):
            *words, _, _, side = part.split()
            sides[side] += 1
            axis, sign = {"left": (0, -1), "right": (0, 1), "bottom": (1, -1), "top": (1, 1)}[side]
            assert any(
                set(words[1:]) <= {o.shape, o.color, o.material, o.size, o.texture}
                and sign * scene.view.project(o.center)[axis] >= 0.1
                for o in scene.objects
            ), (sentence, scene)
    assert min(sides[side] for side in ("left", "right", "bottom", "top")) > 20


@pytest.mark.parametrize("caption", [web_caption, prompt_caption])
def test_pretraining_captions_bind_nothing(caption):
    """Two scenes of the same words bound the other way round have the same captions."""
    counts = []
    for one in (DIFFERENT, exchanged(DIFFERENT)):
        rng = random.Random(5)
        texts: Counter[tuple[str, ...]] = Counter()
        for _ in range(6000):
            words = caption(one, rng).split()
            words = [w for w in words if w in COLORS or w in SHAPES]
            texts[tuple(sorted(words))] += 1
        counts.append(texts)
    for key in counts[0] | counts[1]:
        assert counts[0][key] == pytest.approx(counts[1][key], abs=6 * counts[0][key] ** 0.5 + 12)


def test_word_order_is_independent_of_binding():
    """A colour stands beside either shape equally often, before it or "textured with" it."""
    scene = DIFFERENT
    a, b = scene.objects
    rng, before, behind = random.Random(6), Counter(), Counter()
    for _ in range(6000):
        words = web_caption(scene, rng).split()
        before.update(s for c, s in pairwise(words) if c == a.color)
        words = prompt_caption(scene, rng).split()
        behind.update(s for s, c in zip(words, words[3:], strict=False) if c == a.color)
    for beside in (before, behind):
        assert beside[a.shape] > 500
        assert beside[a.shape] == pytest.approx(beside[b.shape], rel=0.15)


def test_prompts_have_the_form_of_pug():
    rng = random.Random(7)
    texts = " / ".join(prompt_caption(scene, rng) for scene in SCENES for _ in range(20))
    assert re.search(r"a photo of a small sized \w+ textured with \w+ on a \w+ background", texts)
    assert re.search(r"this is a photo of a \w+ and a \w+ in a \w+ environment", texts)
    assert re.search(r"a \w+ on the bottom and a \w+ on the top of the picture", texts)
    assert not re.search(r"on the (left|right) and a \w+ on the (top|bottom)", texts)
    assert {"medium", "blank"} <= set(texts.split())
