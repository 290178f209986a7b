import csv
import itertools
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from tests.benchmarks.models import cosine
from tests.refusals import refused
from vlmtune.benchmarks.pair_scorer import Embedder
from vlmtune.benchmarks.pug_animals import PugAnimals


class Model:
    """Embeds files and captions by a function of what the csv says of them."""

    def __init__(self, image, text):
        self.image, self.text = image, text

    def __call__(self, images, texts, pairs=None):
        raise AssertionError("asked for scores")

    def embed_images(self, images):
        return torch.stack([self.image(image.path) for image in images])

    def embed_texts(self, texts):
        return torch.stack([self.text(text) for text in texts])


def hashed(seed, d=6):
    generator, known = torch.Generator().manual_seed(seed), {}
    return lambda key: known.setdefault(key, torch.randn(d, generator=generator))


def scenes(folder):
    with (folder / "labels_pug_animal.csv").open() as file:
        return list(csv.DictReader(file))


def caption(row):
    size = {"0.7": "small", "1.0": "medium", "1.3": "big"}[row["character_scale"]]
    animal = {"Cat": "cat", "GiantTortoise": "giant tortoise"}[row["character_name"]]
    world = {"Egypt": "egypt", "VillageSquare": "village square", "Opera": "opera"}
    texture = "" if row["character_texture"] == "Default" else " textured with sky"
    return f"A photo of a {size} sized {animal}{texture} on a {world[row['world_name']]} background"


def minus(a, b):
    return [x - y for x, y in zip(a, b, strict=True)]


COLUMN = {"background": "world_name", "size": "character_scale"}
COLUMN |= {"texture": "character_texture", "camera_yaw": "camera_yaw"}


def naive(rows, folder, model, factor):
    """Equation 2 by loops: image, text and across, over all pairs of samples and all changes."""
    column = COLUMN[factor]
    rows = [r for r in rows if factor == "camera_yaw" or r["camera_yaw"] == "0"]
    values = sorted({r[column] for r in rows})
    names = ("world_name", "character_name", "character_scale", "camera_yaw", "character_texture")
    others = [name for name in names if name != column]
    samples = {}
    for r in rows:
        path = folder / r["character_name"] / r["filename"]
        vectors = model.image(path), model.text(caption(r))
        both = [normalize(vector, dim=0).tolist() for vector in vectors]
        samples.setdefault(tuple(r[name] for name in others), {})[r[column]] = both
    image, text, across = [], [], []
    for b, other in itertools.permutations(values, 2):
        seen = [minus(s[other][0], s[b][0]) for s in samples.values()]
        said = [minus(s[other][1], s[b][1]) for s in samples.values()]
        image += [cosine(x, y) for x, y in itertools.combinations(seen, 2)]
        if factor != "camera_yaw":
            text += [cosine(x, y) for x, y in itertools.combinations(said, 2)]
            across += [cosine(x, y) for x, y in zip(seen, said, strict=True)]
    sides = {"image": image, "text": text, "across": across}
    return {name: sum(v) / len(v) for name, v in sides.items() if v}


def test_all_pairs_against_loops(tmp_path):
    PugAnimals.fixture(tmp_path)
    factors = ["texture", "camera_yaw", "background", "size"]
    benchmark = PugAnimals(str(tmp_path / "labels_pug_animal.csv"), str(tmp_path), factors=factors)
    model = Model(hashed(0), hashed(1))
    assert isinstance(model, Embedder)
    result = benchmark.run(model)
    assert result.primary == benchmark.primary == "image/background"
    expected = {
        f"{side}/{factor}": value
        for factor in factors
        for side, value in naive(scenes(tmp_path), tmp_path, model, factor).items()
    }
    assert len(expected) == 10
    assert {k: m.value for k, m in result.metrics.items()} == pytest.approx(expected)
    assert result.outcomes == result.series["image/background"]
    for name, metric in result.metrics.items():
        assert metric.chance == 0.0
        assert -1 <= metric.low <= metric.value <= metric.high <= 1
        own = result.series[name]
        assert len(own) == metric.n
        assert sum(own) / len(own) == pytest.approx(metric.value)


def additive(folder):
    """A model whose embedding is the animal's vector plus one for each value, all of one length."""
    parts = hashed(2, 40)
    rows = {folder / r["character_name"] / r["filename"]: caption(r) for r in scenes(folder)}

    def embed(said):
        words = said.split()
        picked = [words[4], " ".join(words[6:-1])]
        return torch.cat([normalize(parts(p), dim=0) for p in picked])

    return Model(lambda path: embed(rows[path]), embed)


def test_a_model_that_adds_vectors_is_equivariant_in_what_it_adds(tmp_path):
    benchmark = PugAnimals.fixture(tmp_path)
    model = additive(tmp_path)
    result = benchmark.run(model)
    # Size has a vector of its own; the rest of the caption is one vector for each combination.
    for side in ("image", "text", "across"):
        assert result.metrics[f"{side}/size"].value == pytest.approx(1.0)
    assert result.metrics["image/background"].value < 0.9
    turned = benchmark.run(Model(model.image, lambda said: -model.text(said)))
    assert turned.metrics["across/size"].value == pytest.approx(-1.0)
    assert turned.metrics["text/size"].value == pytest.approx(1.0)


def test_random_pairs_are_seeded_and_estimate_all_pairs(tmp_path):
    PugAnimals.fixture(tmp_path)
    model = Model(hashed(0), hashed(1))

    def run(**options):
        path = str(tmp_path / "labels_pug_animal.csv")
        return PugAnimals(path, str(tmp_path), **options).run(model).metrics

    strict = run()
    drawn = [run(convention="reference", seed=seed) for seed in range(15)]
    assert run(convention="reference", seed=5) == drawn[5] != drawn[6]
    for name in ("image/background", "text/size"):
        values = torch.tensor([metrics[name].value for metrics in drawn])
        assert abs(float(values.mean()) - strict[name].value) < 4 * float(values.std()) / 15**0.5
    assert {metrics["across/size"].value for metrics in drawn} == {strict["across/size"].value}


def test_only_frontal_images_are_asked_for_unless_the_angle_is_studied(tmp_path):
    benchmark = PugAnimals.fixture(tmp_path)
    assert len(benchmark.items.images) == 24
    assert len(set(benchmark.items.texts)) == len(benchmark.items.texts) == 24
    pairs = benchmark.items.pairs
    assert pairs.tolist() == [[i, i] for i in range(24)]
    assert bool(benchmark.items.truth.all())
    turned = PugAnimals(str(benchmark.path), str(tmp_path), factors=["camera_yaw"])
    assert len(turned.items.images) == 48
    assert len(turned.items.texts) == 24
    assert list(turned.run(Model(hashed(0), hashed(1))).metrics) == ["image/camera_yaw"]


def test_samples_of_an_animal_form_a_cluster_and_those_that_lack_a_value_are_counted(tmp_path):
    result = PugAnimals.fixture(tmp_path).run(Model(hashed(0), hashed(1)))
    assert len(result.clusters) == result.metrics[result.primary].n == 8
    assert (len(set(result.clusters)), result.degree) == (2, 2)  # a mean over pairs of samples
    benchmark = PugAnimals.fixture(tmp_path)
    lines = Path(benchmark.path).read_text().splitlines()
    Path(benchmark.path).write_text("\n".join(lines[:1] + lines[2:]))  # a frontal image
    result = PugAnimals(str(benchmark.path), str(tmp_path)).run(Model(hashed(0), hashed(1)))
    left_out = {k: (m.value, m.n) for k, m in result.metrics.items() if k.startswith("left_out")}
    sizes = {"background": 8, "size": 12, "texture": 12}
    assert left_out == {f"left_out/{factor}": (1.0, n) for factor, n in sizes.items()}
    assert result.metrics["image/size"].n == 11


def test_animals_can_be_left_out_or_drawn(tmp_path):
    path = str(PugAnimals.fixture(tmp_path).path)
    left = PugAnimals(path, str(tmp_path), without=["Cat"])
    assert {image.path.parent.name for image in left.items.images} == {"GiantTortoise"}
    result = left.run(Model(hashed(0), hashed(1)))
    assert result.metrics["image/size"].low is None  # one animal: nothing to resample
    assert len(PugAnimals(path, str(tmp_path), limit=1).items.images) == 12
    with refused("got 'Dog'"):
        PugAnimals(path, str(tmp_path), without=["Dog"]).load()


def test_a_joint_model_is_refused(tmp_path):
    benchmark = PugAnimals.fixture(tmp_path)
    with refused("dual adapter"):
        benchmark.run(lambda images, texts, pairs=None: torch.zeros(len(pairs)))
    with refused("dual adapter"):
        benchmark.evaluate(torch.zeros(24))


def test_files_that_do_not_fit_are_refused(tmp_path):
    benchmark = PugAnimals.fixture(tmp_path)
    text = Path(benchmark.path).read_text()
    Path(benchmark.path).write_text(text.replace(",0.7,", ",0.8,"))
    with refused(r"a character_scale of .*got another layout.*0\.8"):
        benchmark.load()
    lines = text.splitlines()
    Path(benchmark.path).write_text("\n".join([*lines, lines[1]]))
    with refused("twice"):
        benchmark.load()
    Path(benchmark.path).write_text("\n".join(line for line in lines if "1.3" not in line))
    with refused("two values of size"):
        benchmark.load()
