import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks import run_ranks
from tests.refusals import refused
from vlmtune.adapters import MMAdapter, ZeroShot
from vlmtune.adapters.fusion_styles.albef import Albef
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import _digest, load_all, run_suite
from vlmtune.types import ImageRef


class Counted(OpenClip):
    """Counts what it encodes."""

    def __init__(self, model):
        super().__init__(model)
        self.images, self.captions = 0, 0

    def encode_image(self, pixels, reads):
        self.images += len(pixels)
        return super().encode_image(pixels, reads)

    def encode_text(self, texts, reads):
        self.captions += len(texts)
        return super().encode_text(texts, reads)


@pytest.fixture
def scorer(model_folder):
    """Returns a function that makes a scorer of a zero-shot model, and the model's backbone."""

    def make(store=None):
        backbone, adapter = Counted(str(model_folder)), ZeroShot()
        adapter.attach(backbone)
        return Scorer(backbone, adapter, store, batch_size=4), backbone

    return make


def test_each_benchmark_has_the_numbers_it_has_alone(cola, scorer):
    benchmarks = [cola("first", limit=2), cola("all"), cola("two", limit=5)]
    score, backbone = scorer()
    suite = run_suite(benchmarks, score)
    assert suite.not_run == ()
    assert (backbone.images, backbone.captions) == (18, 18)
    for result, benchmark in zip(suite.results, benchmarks, strict=True):
        alone = benchmark.run(scorer()[0])
        assert result.benchmark == benchmark.name
        assert (result.metrics, result.outcomes) == (alone.metrics, alone.outcomes)


def test_results_list_what_occurs_twice(cola, scorer, tmp_path):
    benchmark = cola()
    rows = json.loads(Path(benchmark.path).read_text())
    first, caption, second, other = rows[0]
    twice = Path(benchmark.path).with_name("twice.json")
    twice.write_text(json.dumps([*rows, [second, other, first, caption]]))
    again = ColaMulti(str(twice), str(Path(benchmark.images)), name="again")
    plain, found = run_suite([benchmark, again], scorer()[0]).results
    assert plain.repeats == ()
    (repeat,) = found.repeats
    assert (repeat.kind, repeat.total, repeat.n) == ("item", 1, 10)
    assert repeat.listed[0].items == (0, 9)
    assert repeat.listed[0].texts == (caption, other)


def test_a_digest_of_items_is_of_their_files_boxes_and_texts_wherever_they_lie():
    def digest(path="here/a.png", box=None, text="a dog"):
        return _digest([ImageRef(Path(path), box)], [text])

    assert digest() == digest("there/a.png")
    others = {digest("here/b.png"), digest(box=(0, 0, 2, 2)), digest(box=(0, 0, 2, 3))}
    assert len({digest(), *others, digest(text="a cat")}) == 5


def test_a_plain_function_of_images_and_texts_is_measured(cola, scorer, monkeypatch):
    score, _ = scorer()
    calls = []

    def function(images, texts):
        calls.append((len(images), len(texts)))
        return score(images, texts).tolist()

    result = cola().run(score)
    (suite,) = run_suite([cola()], function).results
    assert cola().run(function).outcomes == result.outcomes
    assert suite.metrics == result.metrics
    assert calls == [(18, 18), (18, 18)]
    # A third argument of another name is an option, and scores of pairs may be a list.
    assert cola().run(lambda images, texts, size=8: score(images, texts)).metrics == suite.metrics
    rows = []
    (listed,) = run_suite([cola()], lambda *given: score(*given).tolist(), items=rows).results
    assert listed.metrics == suite.metrics
    assert len(rows) == len(suite.outcomes)
    with refused(r"scores of shape \(18, 18\) for a function .* got \(18,\)"):
        cola().run(lambda images, texts: [0.0] * len(images))
    # Of many images each call has a part, with the texts of its pairs.
    monkeypatch.setattr("vlmtune.benchmarks.pair_scorer.IMAGES", 4)
    assert cola().run(function).metrics == suite.metrics
    assert all(count < (18, 18) for count in calls[2:])


def test_what_cannot_be_loaded_is_known_before_anything_is_encoded(cola, scorer, tmp_path):
    score, backbone = scorer()
    order = []

    class Noting(ColaMulti):
        def load(self):
            order.append((self.name, backbone.images))
            super().load()

    gone = ColaMulti(str(tmp_path / "nowhere.json"), str(tmp_path), name="gone")
    suite = run_suite([cola("one", Noting), gone, cola("other", Noting)], score)
    assert [result.benchmark for result in suite.results] == ["one", "other"]
    ((name, why),) = suite.not_run
    assert name == "gone"
    assert "nowhere.json" in why
    assert "\n" not in why
    assert {("one", 0), ("other", 0)} <= set(order)
    assert load_all([cola("one"), gone]) == suite.not_run


def failing(method: str, error: Exception) -> type[ColaMulti]:
    """A benchmark one of whose methods fails."""

    def fail(self, *given):
        raise error

    return type("Failing", (ColaMulti,), {method: fail, "__module__": __name__})


FUSSY = failing("evaluate", UserError("expected better scores, got these: train more"))


class Wrong(ColaMulti):
    def evaluate(self, scores):
        result = super().evaluate(scores)
        wrong = replace(result.metrics["accuracy"], value=float("nan"))
        return replace(result, metrics={**result.metrics, "accuracy": wrong})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FUSSY, "expected better scores, got these: train more"),
        (Wrong, "expected finite numbers for accuracy of bad, got nan: this is a fault"),
        (failing("evaluate", KeyError("a")), "expected bad to run, got KeyError: 'a': mend"),
        (failing("read", RuntimeError("b")), "expected bad to run, got RuntimeError: b: mend"),
        (failing("repeats", RuntimeError("c")), "expected bad to run, got RuntimeError: c: mend"),
    ],
)
def test_a_benchmark_that_fails_does_not_stop_the_others(cola, scorer, caplog, kind, said):
    suite = run_suite([cola("bad", kind), cola("good")], scorer()[0])
    assert [result.benchmark for result in suite.results] == ["good"]
    assert [name for name, _ in suite.not_run] == ["bad"]
    assert suite.not_run[0].reason.startswith(said)
    assert ("Traceback" in caplog.text) == said.endswith(": mend")


@pytest.mark.parametrize("stored", [False, True])
def test_a_damaged_image_fails_the_benchmark_that_has_it(cola, scorer, tmp_path, stored):
    benchmarks = [cola("first", limit=2, seed=None), cola("all")]
    last = cola().items.images[-1].path
    last.write_bytes(last.read_bytes()[:40])
    score, _ = scorer(tmp_path / "store" if stored else None)
    suite = run_suite(benchmarks, score)
    assert [result.benchmark for result in suite.results] == ["first"]
    assert suite.not_run[0].name == "all"
    why = suite.not_run[0].reason
    assert why.startswith(f"expected an image in {last}, got none")
    assert why.endswith(f"(all needs it; for its files: run `{ColaMulti.source}`)")
    assert "\n" not in why
    mine = cola("mine")
    mine.source = ""  # a table of the user's
    assert run_suite([benchmarks[0], mine], score).not_run[0].reason.endswith(" (mine needs it)")


def test_what_a_plug_in_does_not_look_at_is_known_before_anything_is_encoded(cola, scorer):
    class Images(ColaMulti):
        @property
        def items(self):
            arrays = self.arrange(self.read()[:1])
            return replace(arrays, images=(ImageRef(last),))

    class Texts(ColaMulti):
        @property
        def items(self):
            arrays = self.arrange(self.read()[:2])
            return replace(arrays, texts=(*arrays.texts[:-1], " \n"))

    last = cola().items.images[-1].path
    last.write_bytes(b"")
    score, backbone = scorer()
    benchmarks = [cola("first", limit=2, seed=None), cola("all")]
    suite = run_suite([*benchmarks, cola("images", Images), cola("texts", Texts)], score)
    assert [result.benchmark for result in suite.results] == ["first"]
    assert (backbone.images, backbone.captions) == (4, 4)
    *empty, (name, why) = suite.not_run
    for (images, lacking), count in zip(empty, (18, 1), strict=True):
        assert f"expected {count} images for {images}, 1 are empty files, first '{last}'" in lacking
        assert ColaMulti.source in lacking
    assert name == "texts"
    assert why.startswith("expected texts with words for texts, got 1 without, first ' \\n'")


def test_where_nothing_can_be_run_it_is_an_error(cola, scorer, tmp_path):
    gone = [ColaMulti(str(tmp_path / f"{n}.json"), str(tmp_path), name=n) for n in ("a", "b")]
    with refused(r"a\.json.*\(and 1 other benchmark failed\)"):
        run_suite(gone, scorer()[0])
    with refused("expected better scores"):
        run_suite([cola("bad", FUSSY)], scorer()[0])
    with refused(r"a\.json"):
        load_all(gone[:1])
    # It may be no error.
    gone = ColaMulti(str(tmp_path / "nowhere.json"), str(tmp_path), name="gone")
    suite = run_suite([gone, cola("bad", FUSSY)], scorer()[0], at_least_one=False)
    assert suite.results == ()
    assert [name for name, _ in suite.not_run] == ["gone", "bad"]
    assert run_suite([gone], scorer()[0], at_least_one=False).not_run == suite.not_run[:1]


def test_what_a_joint_adapter_lacks_is_known_before_anything_is_encoded(cola, model_folder, scorer):
    class Embedded(ColaMulti):
        needs = "embeddings"

    # ALBEF's fusion has no reading, which would encode an image of the gallery once more.
    backbone, adapter = Counted(str(model_folder)), MMAdapter(heads=2, hidden=2, fusion=Albef())
    adapter.attach(backbone)
    joint = Scorer(backbone, adapter, batch_size=4)
    benchmarks = [cola("embedded", Embedded), cola("few", limit=1)]
    suite = run_suite(benchmarks, joint)
    assert backbone.images == 2
    ((name, why),) = suite.not_run
    assert name == "embedded"
    assert why.startswith("expected an adapter with embeddings, got MMAdapter")
    assert load_all(benchmarks, joint) == suite.not_run
    assert load_all(benchmarks, scorer()[0]) == load_all(benchmarks) == ()
    with refused("an adapter with embeddings"):
        load_all(benchmarks[:1], joint)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ranks_agree_on_what_was_run(cola, scorer, tmp_path):
    absent = failing("read", UserError("expected a file, got none in nowhere.json"))
    failed = failing("evaluate", RuntimeError("not today"))

    def job(rank):
        lost, moody = (absent, ColaMulti) if rank else (ColaMulti, failed)
        score, backbone = scorer()
        benchmarks = [cola("all"), cola("on one rank", lost), cola("moody", moody)]
        return run_suite([*benchmarks, cola("some", limit=4)], score), backbone.images

    (one, first), (other, second) = run_ranks(2, tmp_path / "ranks", job)
    assert one == other
    assert first + second == 18
    assert [result.benchmark for result in one.results] == ["all", "some"]
    assert [name for name, _ in one.not_run] == ["on one rank", "moody"]
    assert "nowhere.json" in one.not_run[0].reason
    assert "not today" in one.not_run[1].reason
    alone = run_suite([cola("all"), cola("some", limit=4)], scorer()[0])
    assert [result.metrics for result in one.results] == [r.metrics for r in alone.results]
