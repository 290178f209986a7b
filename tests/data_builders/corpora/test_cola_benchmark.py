from pathlib import Path

from data_builders.corpora.cola_benchmark import BENCHMARK, ColaBenchmarkBuilder
from tests.data_builders.conftest import counts_of, load
from tests.data_builders.corpora.graphs import COLORS, clevr_reader, gqa, numbered
from tests.refusals import refused
from vlmtune.benchmarks.cola_files import read_queries

IMAGES = {  # image id -> its objects, "attribute ... name"
    "1": numbered("square white plate", "brown table"),
    "2": numbered("white plate", "old brown table"),
    "3": numbered("white square plate"),
    "4": numbered("old car"),
    "5": numbered("green car"),
    "6": numbered("green cup"),
}


def built(builder: ColaBenchmarkBuilder, out: Path) -> tuple[dict, dict]:
    builder.build(out, progress=False)
    return load(out / BENCHMARK), counts_of(out)


def test_the_most_frequent_queries_and_their_images(tmp_path):
    builder = ColaBenchmarkBuilder(gqa(tmp_path, IMAGES), attributes=[2, 1], queries=2)
    content, counts = built(builder, tmp_path / "out")
    assert content["labels"] == [
        [["white"], "plate"],  # three images
        [["brown"], "table"],  # two, as "square plate" has, and first in the alphabet
        [["square", "white"], "plate"],  # two
        [["brown", "old"], "table"],  # one, the only other with two attributes
    ]
    flags = {row[0]: (row[2], row[3]) for row in content["data"]}
    assert flags == {
        "1.jpg": ([1, 1, 1, 0], [1, 1, 1, 1]),
        "2.jpg": ([1, 1, 0, 1], [1, 1, 1, 1]),
        "3.jpg": ([1, 0, 1, 0], [1, 0, 1, 0]),
        "4.jpg": ([0, 0, 0, 0], [0, 0, 0, 1]),  # an old thing
    }
    assert content["data"][0][1] == [[["square", "white"], "plate"], [["brown"], "table"]]
    assert counts == {
        "images": 4,
        "queries: 1 attributes": 2,
        "queries: 2 attributes": 2,
        "skipped: no word of a query": 2,
    }
    every = ColaBenchmarkBuilder(gqa(tmp_path, IMAGES), attributes=[2, 1], queries=None)
    built(every, tmp_path / "every")
    queries = read_queries(tmp_path / "every" / BENCHMARK, tmp_path)
    assert sorted(queries.attributes.tolist()) == [1] * 7 + [2] * 2


def test_queries_of_scenes_state_the_kinds_of_the_reader(world, tmp_path):
    reader = clevr_reader(world, "test", single=["size", "color"])
    content, _ = built(ColaBenchmarkBuilder(reader), tmp_path / "out")
    stated = {word for words, _ in content["labels"] for word in words}
    assert {"small", "large", "red"} <= stated
    assert stated <= {"small", "large", *COLORS}


def test_no_query_at_all_is_an_error(tmp_path):
    reader = gqa(tmp_path, IMAGES)
    with refused("expected objects with 4 attributes, got none"):
        ColaBenchmarkBuilder(reader, attributes=[4]).build(tmp_path / "out", progress=False)
