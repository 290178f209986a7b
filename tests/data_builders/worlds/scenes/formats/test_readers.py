"""The reader of every benchmark reads its file of the rendered world, and an oracle wins there."""

import pytest

from data_builders.worlds.scenes.grids import FACTORS
from data_builders.worlds.scenes.videos import FPS
from tests.data_builders.conftest import SMALL, SUITE
from vlmtune.benchmarks.aro import Aro
from vlmtune.benchmarks.aro_order import AroOrder
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
from vlmtune.benchmarks.sugar_crepe import SugarCrepe
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


@pytest.mark.parametrize(("kind", "paths", "options", "metric", "count"), READERS)
def test_an_oracle_wins(suite, world, kind, paths, options, metric, count):
    folder = world if kind in (ColaMulti, ColaSingle, Retrieval) else suite
    if "seen" in options:
        options = {"seen": str(folder / options["seen"])}
    benchmark = kind(*(str(folder / path) for path in paths), **options)
    metrics = benchmark.run(lambda *_: benchmark.items.truth.float()).metrics
    assert metrics[metric].value == pytest.approx(1.0)
    assert count in (None, metrics[metric].n)
    assert "identical_candidates" not in metrics
