import csv
import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from data_builders.corpora.annotations import ClevrScenes
from data_builders.corpora.cola import ColaBuilder
from data_builders.shard_builder import ShardBuilder
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.series import Series
from data_builders.worlds.scenes.world import ScenesBuilder
from vlmtune.data.shards import ShardSet, read_headers
from vlmtune.types import Group

SHARED = Path(__file__).parents[2] / "../shared/data"
# A world of nothing; a test asks for what it needs.
NOTHING: dict[str, Any] = dict.fromkeys(
    ("train", "val", "test", "cogent", "multi", "ar4t_train", "ar4t_test"), 0
)
SMALL: dict[str, Any] = {
    "train": 12,
    "val": 3,
    "test": 8,
    "cogent": 4,
    "multi": 6,
    "ar4t_train": 8,
    "ar4t_test": 2,
    "image_size": 32,
    "min_objects": 2,
    "max_objects": 4,
    "stack": 0.3,
    "seed": 7,
}
SUITE = NOTHING | {"test": 1, "image_size": 32, "stack": 0.5, "seed": 5, "benchmarks": 12}
RICH = NOTHING | {"test": 1, "ar4t_train": 64, "ar4t_test": 32, "image_size": 32, "seed": 3}


def released(name: str) -> Path:
    """A file that its authors released, in the folder of shared files; skips without it."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs {name} in ../shared/data")
    return path


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def dump(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in sorted(folder.rglob("*"))
        if f.is_file()
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def eqben_items(content: Any) -> list[dict[str, Any]]:
    """EqBen's items: in a list, under their video, or under video and subject."""
    if "image0" in content:
        return [content]
    children = content.values() if isinstance(content, dict) else content
    return [row for child in children for row in eqben_items(child)]


def groups(builder: ShardBuilder) -> list[Group]:
    return [group for group, _ in builder.records()]


def read_groups(shards: Path) -> list[Group]:
    return [group for _, group, _ in read_headers([ShardSet(str(shards))])]


def counts_of(built: Path) -> dict[str, int]:
    """What a build counted, from its manifest."""
    return load(built / "manifest.json")["counts"]


def truths(group: Group) -> dict[str, bool]:
    """Whether each text of a group of one image is true."""
    return dict(zip(group.texts, group.truth[0].tolist(), strict=True))


def scenes_of(world: Path, files: str) -> dict[str, dict[str, Any]]:
    """CLEVR's scene of each image, by its file name, from the files with such names."""
    return {
        scene["image_filename"]: scene
        for path in sorted((world / "clevr").glob(files))
        for scene in load(path)["scenes"]
    }


def unseen_of(world: Path) -> set[tuple[str, str]]:
    """The compositions that training lacks."""
    return {(color, shape) for color, shape in load(world / "compositions.json")["unseen"]}


def composed(objects: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(obj["color"], obj["shape"]) for obj in objects}


def rendered(out: Path, options: dict[str, Any], **more: Any) -> Path:
    """Renders a world."""
    ScenesBuilder(**options | more).build(out, progress=False)
    return out


def attempted(series: Series, index: int) -> tuple[Scene, ...]:
    """The first scenes that a series finds for an item."""
    samples = (series.attempt(index, random.Random(f"{index}:{n}")) for n in range(400))
    return next(scenes for scenes in samples if scenes)


def training_texts(world: Path, **queries: Any) -> list[str]:
    """Every text that a training over a world may read, with some queries of Cola's form."""
    texts = []
    for image in load(world / "karpathy/dataset_scenes.json")["images"]:
        if image["split"] == "train":
            texts += [sentence["raw"] for sentence in image["sentences"]]
    for path in (*world.glob("*/train.csv"), world / "ar4t/PUG_AR_train.csv"):
        for row in rows_of(path):
            named = [name for name in row if name == "negative" or "caption" in name.lower()]
            texts += [row[name] for name in named]
    scenes = ClevrScenes(world / "clevr/scenes_train.json", world / "images/train")
    builder = ColaBuilder(scenes, exclude=world / "compositions.json", **queries)
    return texts + [text for group in groups(builder) for text in group.texts]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded world, small, in all its formats."""
    return rendered(tmp_path_factory.mktemp("scenes") / "world", SMALL)


@pytest.fixture(scope="session")
def clevr(world: Path) -> dict[str, dict[str, Any]]:
    """CLEVR's scene of each image of the three splits, by "<split>/<file>"."""
    return {
        f"{split}/{scene['image_filename']}": scene
        for split in ("train", "val", "test")
        for scene in load(world / f"clevr/scenes_{split}.json")["scenes"]
    }


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded world in the layouts of all benchmarks."""
    return rendered(tmp_path_factory.mktemp("suite") / "world", SUITE)


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded world with every kind of scene of PUG:AR4T."""
    return rendered(tmp_path_factory.mktemp("rich") / "world", RICH)


@pytest.fixture(scope="session")
def graphs(suite: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """CLEVR's scenes of the suite's images, by series and file name."""
    return {
        path.stem.removeprefix("scenes_suite_"): scenes_of(suite, path.name)
        for path in sorted((suite / "clevr").glob("scenes_suite_*.json"))
    }
