from collections import Counter

from tests.data_builders.conftest import SUITE, load
from tests.data_builders.scenes.truth import holds
from vlmtune.benchmarks.eqben import EqBen


def test_each_caption_is_true_of_its_image_alone(suite, graphs):
    rows = load(suite / "eqben/eqben_kubric.json")
    parts = Counter(row["image0"].partition("/")[0] for row in rows)
    each = SUITE["benchmarks"]
    assert parts == {f"eqbenkubric_{part}": each for part in ("loc", "cnt", "attr")}
    for row in rows:
        captions = row["caption0"], row["caption1"]
        for i in (0, 1):
            folder, _, name = row[f"image{i}"].partition("/")
            scene = graphs[folder.removeprefix("eqbenkubric_")][name]
            assert [holds(scene, text) for text in captions] == [i == 0, i == 1], row
            assert (suite / "images/eqben" / folder / name).is_file()


def test_the_reader_reads_it(suite):
    benchmark = EqBen(str(suite / "eqben/eqben_kubric.json"), str(suite / "images/eqben"))
    metrics = benchmark.run(lambda *_: benchmark.truth().float()).metrics
    assert metrics["average"].value == 1.0
    assert metrics["group_accuracy"].n == 3 * SUITE["benchmarks"]
