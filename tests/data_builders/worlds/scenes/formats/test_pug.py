import pytest
import torch

from data_builders.worlds.scenes.formats.pug import ANIMALS, SPAR
from tests.data_builders.conftest import rows_of
from vlmtune.benchmarks.pug_animals import PugAnimals


@pytest.fixture(scope="module")
def spar(suite, graphs):
    rows = rows_of(suite / "images/pug_spar/labels.csv")
    assert tuple(rows[0]) == SPAR
    return [(row, graphs["spar"][row["filename"]]) for row in rows]


def test_spar_is_the_whole_grid_and_true_of_its_scenes(spar):
    cells = {tuple(row[name] for name in SPAR[1:]) for row, _ in spar}
    worlds, names = ({row[k] for row, _ in spar} for k in ("world_name", "character_name"))
    assert {"blank", "Cube", "Sphere"} <= names == {row["character2_name"] for row, _ in spar}
    assert len(cells) == len(spar) == 3 * len(worlds) * len(names) ** 2
    for row, scene in spar:
        columns = (
            ("character_name", "character1_pos", "character_texture"),
            ("character2_name", "character2_pos", "character2_texture"),
        )
        told = [tuple(row[c] for c in own) for own in columns if row[own[0]] != "blank"]
        assert len(told) == len(scene["objects"])
        assert scene["floor"].capitalize() == row["world_name"]
        for (name, side, texture), thing in zip(told, scene["objects"], strict=True):
            assert thing["shape"].capitalize() == name
            if texture != "Default":
                assert thing["color"].capitalize() == texture
            x, y, _ = thing["pixel_coords"]
            half = {"left": 16 - x, "right": x - 16, "bottom": y - 16, "top": 16 - y}
            assert half[side] > 1, (row, thing)


def test_animals_rows_are_true_of_their_scenes(suite, graphs):
    rows = rows_of(suite / "images/pug_animals/labels_pug_animal.csv")
    assert tuple(rows[0]) == ANIMALS
    sizes = set()
    for row in rows:
        scene = graphs["animals"][row["filename"]]
        (thing,) = scene["objects"]
        assert thing["shape"].capitalize() == row["character_name"]
        assert scene["floor"].capitalize() == row["world_name"]
        texture = row["character_texture"]
        assert thing["color"].capitalize() == ("Gray" if texture == "Default" else texture)
        sizes.add((row["character_scale"], row["character_name"], thing["3d_coords"][2]))
        assert thing["rotation"] == 20 + int(row["camera_yaw"])
    heights = {name: [z for _, n, z in sorted(sizes) if n == name] for _, name, _ in sizes}
    assert all(len(z) == 3 and z == sorted(z) for z in heights.values())


def test_the_reader_reads_animals(suite):
    folder = suite / "images/pug_animals"
    benchmark = PugAnimals(
        str(folder / "labels_pug_animal.csv"),
        str(folder),
        factors=["background", "size", "texture", "camera_yaw"],
    )

    benchmark.load()
    sides = (benchmark.items.images, benchmark.items.texts)
    made = (torch.randn(len(things), 4) for things in sides)
    metrics = benchmark.evaluate_embeddings(*made).metrics
    assert not [name for name in metrics if name.startswith("left_out")]
    assert {"image/background", "text/size", "across/texture", "image/camera_yaw"} <= set(metrics)
