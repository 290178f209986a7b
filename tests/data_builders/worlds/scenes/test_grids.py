import pytest

from data_builders.worlds.scenes.formats.pug import SPAR
from data_builders.worlds.scenes.grids import FACTORS, AnimalGrid, PoseGrid, Singles, SparGrid
from data_builders.worlds.scenes.sampling import WorldSpec
from tests.data_builders.conftest import attempted
from tests.data_builders.worlds.scenes.formats.test_readers import SETUPS
from vlmtune.benchmarks.files import write_csv
from vlmtune.benchmarks.pug_spar import read_setups

SPEC = WorldSpec(min_objects=2, max_objects=3)


def scene_of(grid, index):
    return attempted(grid, index)[0]


@pytest.mark.parametrize("cls", [SparGrid, PoseGrid, AnimalGrid, Singles])
def test_every_cell_has_a_different_file(cls):
    files = cls(SPEC, 0, 3).files()
    assert len(set(files)) == len(files)
    if cls is not Singles:
        assert len(files) == len(cls(SPEC, 0, 3).cells)


def test_a_world_without_blue_and_red_has_no_such_group():
    spec = WorldSpec(colors=("red", "green"))
    assert {cell.texture for cell in SparGrid(spec, 0, 2).cells} == {"Default"}
    assert {cell.texture for cell in SparGrid(SPEC, 0, 2).cells} == {"Default", "Blue"}


def test_a_repeated_grid_begins_with_the_grid():
    once, thrice = SparGrid(SPEC, 0, 2), SparGrid(SPEC, 0, 2, repeats=3)
    assert thrice.cells == 3 * once.cells
    assert len(set(thrice.files())) == len(thrice.files()) == 3 * len(once.files())
    cells, pair = len(once.cells), [c.second != "blank" != c.first for c in once.cells].index(True)
    first, *others = (scene_of(thrice, pair + k * cells) for k in range(3))
    assert first == scene_of(once, pair)
    for other in others:
        assert other.floor == first.floor
        assert [o.shape for o in other.objects] == [o.shape for o in first.objects]
        assert other.jitter != first.jitter
        assert [o.center for o in other.objects] != [o.center for o in first.objects]


@pytest.mark.parametrize(("repeats", "single", "double"), [(1, 50, 100), (8, 400, 800)])
def test_images_of_each_set_up_of_spar(tmp_path, repeats, single, double):
    # 5 floors; 5 shapes in either position, and 5 x 4 ordered pairs of different ones.
    grid = SparGrid(WorldSpec(min_objects=2), 0, 40, repeats)
    assert len(grid.files()) == 540 * repeats
    names = [file.rpartition("/")[2] for file in grid.files()]
    rows = [
        [f, c.world, c.first, c.second, c.side, c.side2, c.texture, c.texture2]
        for f, c in zip(names, grid.cells, strict=True)
    ]
    path = write_csv(tmp_path / "labels.csv", SPAR, rows)
    counts = {s.name: len(s.rows) for s in read_setups(path, SETUPS, None)}
    assert counts == dict(zip(SETUPS, (single, single, double, double, double), strict=True))


def test_one_factor_changes_at_a_time():
    grid = PoseGrid(SPEC, 0, 4)
    fields = {
        "Worlds": {"floor", "background"},
        "Camera_Pitch": {"jitter"},
        "Camera_Yaw": {"rotation", "light_azimuth"},
        "Object_Yaw": {"rotation"},
        "Object_Scale": {"radius", "size", "center"},
        "Object_Texture": {"color", "material", "texture"},
        "Scene_Light": {"light_azimuth"},
    }
    for factor in FACTORS:
        for shape in SPEC.shapes:
            cells = [k for k, c in enumerate(grid.cells) if c[:2] == (factor, shape)]
            assert len(cells) == 4
            seen = []
            for scene in (scene_of(grid, k) for k in cells):
                (obj,) = scene.objects
                assert obj.shape == shape
                values = {**vars(scene), **vars(obj)}
                seen.append({k: v for k, v in values.items() if k not in ("objects", "shape")})
            differing = {name for name in seen[0] if len({str(s[name]) for s in seen}) > 1}
            assert differing
            assert differing <= fields[factor]


def test_animals_differ_only_in_their_columns():
    grid = AnimalGrid(SPEC, 0, 2)
    by_cell = {cell: scene_of(grid, k) for k, cell in enumerate(grid.cells)}
    for cell, scene in by_cell.items():
        (obj,) = scene.objects
        (other,) = by_cell[cell._replace(yaw=0, scale=1.0)].objects
        assert scene.floor == cell.world
        assert obj.radius == pytest.approx(0.58 * cell.scale)
        assert (obj.color, obj.material) == (other.color, other.material)
        assert obj.rotation - other.rotation == cell.yaw


def test_singles_take_turns_and_the_class_is_the_folder(suite, graphs):
    images = list((suite / "images/classification").rglob("*.png"))
    assert len(images) == len(graphs["singles"]) > 0
    for path in images:
        (obj,) = graphs["singles"][path.name]["objects"]
        assert obj["shape"] == path.parent.name
    shapes = [scene_of(Singles(SPEC, 0, 2), k).objects[0].shape for k in range(10)]
    assert shapes == [*SPEC.shapes, *SPEC.shapes]
    files = Singles(SPEC, 0, 2).files()
    assert [file.split("/")[1] for file in files] == shapes
    for path in (suite / "images/pug_imagenet").rglob("*.png"):
        (obj,) = graphs["poses"][path.name]["objects"]
        assert obj["shape"].capitalize() == path.parent.name
