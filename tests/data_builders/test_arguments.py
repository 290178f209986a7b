"""Arguments out of their bounds are refused by name, where a builder is made."""

import pytest

from data_builders.shard_builder import Builder
from tests.refusals import refused
from vlmtune.cli.plugins import find, make

WRONG = [
    ("ar4t", "subset", "pair"),
    ("class_folders", "fraction", "0"),
    ("class_folders", "negatives", "-1"),
    ("cola", "single", "-1"),
    ("cola", "form", "with"),
    ("cola", "annotations.single", "[colour]"),
    ("cola", "annotations.size", "[64]"),
    ("cola_benchmark", "attributes", "[0]"),
    ("cola_pairs", "benchmark", "1.1"),
    ("cola_split", "unseen", "0"),
    ("descriptions", "completeness", "0"),
    ("descriptions", "density", "1.5"),
    ("half_truths", "entities", "0"),
    ("pug_animals_split", "factor", "colour"),
    ("pug_animals_split", "val", "1"),
    ("regions", "annotations.multi", "0"),
    ("questions", "per_image", "0"),
    ("requests", "image_size", "4"),
    ("requests", "min_exposed", "1.5"),
    ("scenes", "train", "-1"),
    ("scenes", "colors", "[mauve]"),
    ("scenes", "processes", "0"),
    ("table", "held_out", "1"),
]


@pytest.mark.parametrize(("builder", "name", "value"), WRONG)
def test_an_argument_out_of_bounds_is_refused(builder, name, value):
    *_, argument = name.split(".")
    with refused(f"{argument}: .*{value.strip('[]')}"):
        make(Builder, find("builders", builder), [f"--{name}={value}"])  # type: ignore[type-abstract]
