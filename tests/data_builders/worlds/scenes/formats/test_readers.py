"""Every benchmark reads its file of the rendered world, where its captions are true and false."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from data_builders.worlds.scenes.grids import FACTORS
from data_builders.worlds.scenes.videos import FPS
from tests.data_builders.conftest import SMALL, SUITE, load, rows_of, scenes_of
from tests.data_builders.worlds.scenes.truth import KIND, SHAPES, NoSentenceError, holds
from vlmtune.benchmarks.aro import Aro
from vlmtune.benchmarks.aro_order import AroOrder
from vlmtune.benchmarks.base import Benchmark
from vlmtune.benchmarks.boundary_grounding import BoundaryGrounding
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.benchmarks.cola_single import ColaSingle
from vlmtune.benchmarks.crepe_productivity import CrepeProductivity
from vlmtune.benchmarks.crepe_systematicity import CrepeSystematicity
from vlmtune.benchmarks.half_truths import HalfTruths
from vlmtune.benchmarks.negbench import NegBench
from vlmtune.benchmarks.pug_imagenet import PugImageNet
from vlmtune.benchmarks.pug_spar import PugSpar
from vlmtune.benchmarks.pug_spar_retrieval import PugSparRetrieval
from vlmtune.benchmarks.retrieval import Retrieval
from vlmtune.benchmarks.sugar_crepe import SUBSETS, SugarCrepe
from vlmtune.benchmarks.valse import Valse
from vlmtune.benchmarks.whats_up import WhatsUp
from vlmtune.benchmarks.winoground import Winoground
from vlmtune.benchmarks.zero_shot_classification import ZeroShotClassification

COUNT: int = SUITE["benchmarks"]
SETUPS = (
    *("single_left_right", "single_bottom_top", "double_left_right", "double_bottom_top"),
    "attributes_blue_red",
)
KARPATHY = ["karpathy/dataset_scenes.json", "images"]
WINOGROUND = ["winoground/examples.jsonl", "images/suite"]
WHATS_UP = ["whats_up", "images/whats_up", "images"]
ORDER = ["aro/coco_karpathy_test.json", "images", "aro/coco_karpathy_test_shuffles.json"]
RELATION, ATTRIBUTION = (f"aro/visual_genome_{task}.json" for task in ("relation", "attribution"))
PROD, SYST = (f"crepe/{kind}_hard_negatives" for kind in ("prod", "syst"))
SPAR = ["images/pug_spar/labels.csv", "images/pug_spar"]
# The class, its paths, further arguments, and a metric with its number of items where it is known.
READERS = [
    (ColaMulti, ["cola/multi_seen.json", "images/cola"], {}, "accuracy", SMALL["multi"]),
    (ColaMulti, ["cola/multi_unseen.json", "images/cola"], {}, "accuracy", SMALL["multi"]),
    (ColaSingle, ["cola/single.json", "images"], {"seen": "cola/single_split.json"}, "map", None),
    (Aro, [RELATION, "images/suite"], {"task": "relation"}, "accuracy", COUNT),
    (Aro, [ATTRIBUTION, "images/suite"], {"task": "attribution"}, "accuracy", COUNT),
    (AroOrder, ORDER, {}, "accuracy", COUNT),
    (BoundaryGrounding, ["geb/test.json", "images/geb"], {"fps": FPS}, "accuracy@0.1", None),
    (CrepeProductivity, [PROD, "crepe"], {}, "accuracy", None),
    (CrepeProductivity, [PROD, "crepe"], {"complexities": None}, "accuracy", None),
    (CrepeSystematicity, [SYST, "crepe"], {}, "accuracy", 2 * COUNT),
    (HalfTruths, ["half_truths/units.json", "images/suite"], {}, "accuracy", None),
    (NegBench, ["negbench/scenes_val_mcq.csv", "images/suite"], {}, "accuracy", COUNT),
    (WhatsUp, WHATS_UP, {"parts": ["controlled_b"]}, "set_accuracy/controlled_b", COUNT / 4),
    (PugImageNet, ["images/pug_imagenet"], {"factors": list(FACTORS)}, "accuracy", None),
    (PugSpar, SPAR, {"setups": list(SETUPS)}, "accuracy", None),
    (PugSparRetrieval, SPAR, {"setups": ["scene"]}, "accuracy", None),
    (Retrieval, KARPATHY, {}, "text_to_image_recall@5", None),
    (SugarCrepe, ["sugar_crepe", "images/suite"], {}, "accuracy", 7 * COUNT),
    (Valse, ["valse", "images/suite"], {}, "acc_r/average", None),
    (Winoground, WINOGROUND, {}, "group_accuracy/Object", COUNT / 2),
    (ZeroShotClassification, ["images/classification"], {}, "accuracy", None),
]


# Whose captions are sentences of the world, stated to be true or false of each image of their item.
SENTENCES = (ColaSingle, Aro, AroOrder, CrepeProductivity, CrepeSystematicity)
SENTENCES += (HalfTruths, NegBench, WhatsUp, SugarCrepe, Valse, Winoground, ZeroShotClassification)
OF_THE_WORLD = (ColaMulti, ColaSingle, Retrieval)  # the others are of the suite


def made(folder: Path, kind: type[Benchmark], paths: list[str], options: dict) -> Benchmark:
    if "seen" in options:
        options = {"seen": str(folder / options["seen"])}
    return kind(*(str(folder / path) for path in paths), **options)


@pytest.fixture(scope="module")
def scenes(world, graphs):
    """CLEVR's scene of each image of a sentence, by its file name."""
    scenes = scenes_of(world, "*.json")
    for series in ("scenes", "twins", "placed", "singles"):
        scenes |= graphs[series]
    for number in range(2 * COUNT):  # CREPE's copies
        scenes[f"{number + 1}.jpg"] = scenes[f"suite_scenes_{number:06d}.png"]
    return scenes


def is_true(scene, text):
    try:
        return holds(scene, text)
    except NoSentenceError:  # shuffled words
        return False


@pytest.mark.parametrize(
    ("kind", "paths", "options", "metric", "count"),
    READERS,
    ids=[row[0].__name__ for row in READERS],
)
def test_an_oracle_wins_and_captions_are_true_and_false_by_their_words(
    suite, world, scenes, kind, paths, options, metric, count
):
    benchmark = made(world if kind in OF_THE_WORLD else suite, kind, paths, options)
    items = benchmark.items
    metrics = benchmark.run(lambda *_: items.truth.float()).metrics
    assert metrics[metric].value == pytest.approx(1.0)
    assert count in (None, metrics[metric].n)
    assert "identical_candidates" not in metrics
    if kind in SENTENCES:
        pairs = itertools.product(range(len(items.images)), range(len(items.texts)))
        pairs = pairs if items.pairs is None else items.pairs.tolist()
        for (i, j), true in zip(pairs, items.truth.flatten().tolist(), strict=True):
            scene = scenes[items.images[i].path.name]
            assert is_true(scene, items.texts[j]) == true, items.texts[j]


# -- what a file states besides -------------------------------------------------------------------


def test_shuffles_of_order_move_what_they_should(suite):
    rows = load(suite / "aro/coco_karpathy_test.json")
    shuffles = load(suite / "aro/coco_karpathy_test_shuffles.json")["shuffles"]
    for row, texts in zip(rows, shuffles, strict=True):
        (caption,) = row["caption"]
        words = caption.split()
        assert [Counter(text.split()) for text in texts] == [Counter(words)] * 4
        nouns, others, within, order = texts
        content = [k for k, word in enumerate(words) if word in SHAPES or word in KIND]
        moved = [
            {k for k, (a, b) in enumerate(zip(words, text.split(), strict=True)) if a != b}
            for text in (nouns, others)
        ]
        assert moved[0] <= set(content)
        assert moved[1].isdisjoint(content)
        trigrams = [words[k : k + 3] for k in range(0, len(words), 3)]
        parts = [within.split()[k : k + 3] for k in range(0, len(words), 3)]
        assert [sorted(a) for a in trigrams] == [sorted(b) for b in parts]
        assert all(" ".join(part) in order for part in trigrams)


def test_short_and_long_descriptions_are_of_units_with_one_change(suite):
    units = load(suite / "half_truths/units.json")
    assert len(units) == COUNT
    # Each kind of detail comes often enough to report its accuracy apart.
    items = HalfTruths(str(suite / "half_truths/units.json"), str(suite / "images/suite")).read()
    groups = [item.group for item in items]
    assert min(groups.count("entity"), groups.count("relation")) >= len(units)
    for record in units:
        assert set(record["negative_entities"]) == set(record["entities"])
        for entity, foils in record["negative_entities"].items():
            for foil in foils:
                # An article may follow its noun.
                pairs = zip(entity.split()[1:], foil["negative"].split()[1:], strict=True)
                assert sum(a != b for a, b in pairs) == 1
        (relation,) = record["relations"]
        for foil in relation["negatives"]:
            keys = ("subject", "relation_type", "object")
            assert sum(relation[key] != foil[key] for key in keys) == 1


def test_the_templates_of_negbench_and_the_places_of_true_captions_take_turns(suite):
    rows = rows_of(suite / "negbench/scenes_val_mcq.csv")
    for row in rows:
        true = row[f"caption_{row['correct_answer']}"]
        affirmed = true.startswith(("there is a ", "there is an "))
        template = {(False, True): "positive", (True, False): "negative", (True, True): "hybrid"}
        assert template[" no " in true, affirmed] == row["correct_answer_template"]
    # So a constant scorer, whose argmax is the first caption, does not win.
    assert len({row["correct_answer"] for row in rows}) > 1
    templates = [row["correct_answer_template"] for row in rows]
    assert {templates.count(name) for name in set(templates)} == {len(rows) / 3}


@pytest.mark.parametrize("subset", SUBSETS)
def test_sugar_crepe_swaps_adds_or_replaces_a_word(suite, subset):
    items = load(suite / f"sugar_crepe/{subset}.json")
    assert list(items) == [str(k) for k in range(COUNT)]
    for item in items.values():
        before, after = (sorted(item[k].split()) for k in ("caption", "negative_caption"))
        form = subset.partition("_")[0]
        if form == "swap":
            assert before == after
        if form == "add":
            assert not set(before) - set(after)
            assert len(after) > len(before)
        if subset in ("replace_obj", "replace_att"):
            assert len(set(before) - set(after)) <= 1


def test_the_images_of_a_set_of_whats_up_have_the_same_four_statements(suite):
    rows = load(suite / "whats_up/controlled_clevr_dataset.json")
    for k, row in enumerate(rows):
        first = rows[k - k % 4]
        assert sorted(row["caption_options"]) == sorted(first["caption_options"])


def test_winogrounds_captions_have_the_same_words(suite):
    lines = (suite / "winoground/examples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == list(range(COUNT))
    for row in rows:
        assert Counter(row["caption_0"].split()) == Counter(row["caption_1"].split())
    tags = {(row["tag"].partition("-")[0], row["collapsed_tag"]) for row in rows}
    assert tags == {("Noun", "Object"), ("Adjective", "Relation")}
