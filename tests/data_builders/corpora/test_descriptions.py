from collections import Counter

from data_builders.corpora.annotations import AnnotatedObject, ClevrScenes
from data_builders.corpora.descriptions import DescriptionsBuilder, exchanged
from data_builders.corpora.queries import Query
from data_builders.corpora.vague import Vague
from tests.data_builders.conftest import load, read_groups, truths

NOTHING = Vague([], [])  # nothing is left open
COLOURS = {"blue", "brown", "cyan", "gray", "green", "purple", "red", "yellow"}


def build(world, out, **options):
    scenes = world / "clevr/scenes_train.json"
    reader = ClevrScenes(scenes, world / "images/train", multi=["color"])
    DescriptionsBuilder(reader, **options).build(out, progress=False)
    content = {scene["image_filename"]: scene["objects"] for scene in load(scenes)["scenes"]}
    return [(content[f"{group.key}.png"], group) for group in read_groups(out)]


def nouns(text: str) -> list[tuple[str, ...]]:
    """The words of each noun phrase, without its article."""
    phrases = text.replace(" and ", ", ").split(", ")
    return [tuple(phrase.split()[1:]) for phrase in phrases]


def test_a_complete_description_names_every_object_with_its_colour(world, tmp_path):
    found = build(world, tmp_path / "out")
    assert len(found) > 5
    for objects, group in found:
        named = Counter((obj["color"], obj["shape"]) for obj in objects)
        assert all(Counter(nouns(text)) == named for text in group.texts)
        assert bool(group.truth.all())


def test_half_of_the_objects_and_no_colours(world, tmp_path):
    for objects, group in build(world, tmp_path / "out", completeness=0.5, density=0):
        shapes = Counter((obj["shape"],) for obj in objects)
        for text in group.texts:
            named = Counter(nouns(text))
            assert named.total() == max(1, round(len(objects) / 2))
            assert named <= shapes


def test_the_density_is_the_fraction_of_nouns_with_a_colour(world, tmp_path):
    found = build(world, tmp_path / "out", density=0.3, captions=40)
    every = [noun for _, group in found for text in group.texts for noun in nouns(text)]
    dense = sum(noun[0] in COLOURS for noun in every) / len(every)
    assert 0.2 < dense < 0.45  # equal descriptions count once, so it is no exact 0.3


def test_salient_descriptions_name_the_nearest_objects(world, tmp_path):
    for objects, group in build(world, tmp_path / "out", completeness=0.4, salient=True):
        count = max(1, round(0.4 * len(objects)))
        nearest = sorted(objects, key=lambda obj: -obj["pixel_coords"][1])[:count]
        named = Counter((obj["color"], obj["shape"]) for obj in nearest)
        assert all(Counter(nouns(text)) == named for text in group.texts)


def test_twins_exchange_what_is_said_and_are_false(world, tmp_path):
    found, false = build(world, tmp_path / "out", twins=True, density=0.6), 0
    for objects, group in found:
        for text, true in truths(group).items():
            stated = [
                any(set(noun) <= {obj["color"], obj["shape"]} for obj in objects)
                for noun in nouns(text)
            ]
            assert all(stated) == true
            false += not true
    assert false > 5


def test_no_twin_where_the_exchange_is_true_or_changes_nothing():
    def thing(name: str, colour: str) -> AnnotatedObject:
        return AnnotatedObject(name, frozenset((colour,)), (colour,), (colour,), ((colour,),))

    red, blue = ("red",), ("blue",)
    scene = [thing("cube", "red"), thing("ball", "blue")]
    said = [Query(red, "cube"), Query(blue, "ball")]
    assert exchanged(said, scene, NOTHING, {}) == [Query(blue, "cube"), Query(red, "ball")]
    assert exchanged(said, scene, NOTHING, {"ball": [frozenset(red)]}) is None
    assert exchanged([Query(red, "cube"), Query((), "ball")], scene, NOTHING, {}) == [
        Query((), "cube"),
        Query(red, "ball"),
    ]
    assert exchanged([Query((), "cube"), Query((), "ball")], scene, NOTHING, {}) is None
    assert exchanged(said[:1], scene, NOTHING, {}) is None
    every = [thing(name, colour) for name in ("cube", "ball") for colour in ("red", "blue")]
    assert exchanged(said, every, NOTHING, {}) is None


def test_an_excluded_composition_is_named_without_its_attributes(world, tmp_path):
    kinds = Counter(
        (obj["color"], obj["shape"])
        for scene in load(world / "clevr/scenes_train.json")["scenes"]
        for obj in scene["objects"]
    )
    colour, shape = kinds.most_common(1)[0][0]
    exclude = tmp_path / "exclude.json"
    exclude.write_text(f'{{"unseen": [["{colour}", "{shape}"]]}}')
    found = build(world, tmp_path / "out", exclude=exclude, twins=True)
    said = Counter(noun for _, group in found for text in group.texts for noun in nouns(text))
    assert said[(colour, shape)] == 0
    assert said[(shape,)] > 0
