"""Measures `vlmtune search` on rendered scenes: queries per second and accuracy by recall k.

Recall vectors find k images, and the joint adapter of `--model` (grounded words) scores them again
from stored tokens. "Same" is the fraction of captions with the same first image as scoring all
images, "true" the fraction of captions that their first image shows. k = 1 is the recall vectors
by themselves. Captions are searched one by one (`Index.search`) and all together
(`Index.search_all`). Times are fractions of that of scoring all images, from their files
as `vlmtune score` does and from the tokens in the index. Required: "true" within half a point of
all images, in a hundredth of their time.

    python -m scripts.bench.search [--images 10000] [--queries 200] [--k 1 10 40 100 1000]
"""

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from PIL import Image

from data_builders.phrases import PHRASES
from data_builders.worlds.scenes.captions import query
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.series import Canvas, SceneSeries
from data_builders.worlds.scenes.statements import clear_relations
from scripts.bench.harness import DEVICE, figure, options, timed
from vlmtune.config import ROOT
from vlmtune.model import load
from vlmtune.model.model import Model
from vlmtune.search import Index, build_index
from vlmtune.search.index import ENCODED

MODEL = str(ROOT / "checkpoints/scenes-grounded-words")
WORLD = WorldSpec(min_objects=2, max_objects=3, textures=("plain",), sizes=("large",))
MODES = "one by one", "together"
CHUNK = 256  # images rendered at a time


def statements(scene: Scene) -> set[str]:
    """Everything that is clearly true of two objects of a scene."""
    nouns = [query(obj) for obj in scene.objects]
    return {f"{nouns[i]} {PHRASES[name]} {nouns[j]}" for i, name, j in clear_relations(scene)}


def render(folder: Path, count: int) -> list[set[str]]:
    """Writes images 0.png, 1.png, ... and returns what is true of each."""
    world, true = SceneSeries(WORLD, 0), []
    for start in range(0, count, CHUNK):
        rendered = world.render(start, min(CHUNK, count - start), Canvas(device=DEVICE))
        for i, shown in enumerate(rendered, start):
            true.append(statements(shown.scene))
            Image.fromarray(shown.image.numpy()).save(folder / f"{i}.png")
    return true


def score_files(model: Model, files: Sequence[Path], caption: str) -> None:
    """Scores all images from their files, as `vlmtune score` does."""
    for start in range(0, len(files), 8 * CHUNK):  # tokens of so many images are held in memory
        model.scorer()(files[start : start + 8 * CHUNK], [caption])


def one_by_one(index: Index, captions: Sequence[str], recall: int) -> None:
    """Searches each caption by itself."""
    for caption in captions:
        index.search(caption, 1, recall)


def main() -> None:
    """Prints how fast the index is built, then a line for each k."""
    chosen = options(__doc__, images=10_000, queries=200, k=[1, 10, 40, 100, 1000], model=MODEL)
    model = load(chosen.model, device=DEVICE)
    with tempfile.TemporaryDirectory() as temporary:
        folder, out = Path(temporary, "images"), Path(temporary, "index")
        folder.mkdir()
        true = render(folder, chosen.images)
        files = [folder / f"{i}.png" for i in range(chosen.images)]
        stated = sorted(set.union(*true))
        captions = random.Random(0).sample(stated, min(chosen.queries, len(stated)))
        _, seconds = timed(lambda: build_index(files, model, out, chosen.model))
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        print(f"index: {len(files) / seconds:.0f} images/s, {size / len(files):.0f} bytes an image")
        _, anew = timed(lambda: score_files(model, files, captions[0]))
        print(f"all images from their files: {anew:.1f} s for one caption")
        figure("index is written", len(files) / seconds, "images/s")
        index = Index.open(out, model)
        index.search(captions[0])
        # Captions in groups, each with every k in turn.
        ks = [k for k in chosen.k if k < len(files)] + [len(files)]
        taken = {k: [0.0, 0.0] for k in ks}  # seconds one by one, and together
        first = dict[int, list[int]]((k, []) for k in ks)
        for start in range(0, len(captions), ENCODED):
            some = captions[start : start + ENCODED]
            for k in ks:
                _, seconds = timed(partial(one_by_one, index, some, k))
                taken[k][0] += seconds
                results, seconds = timed(partial(index.search_all, some, 1, k))
                taken[k][1] += seconds
                first[k] += [int(hit.path.stem) for (hit,) in results]

        everything = len(files)
        for k in ks:
            same = mean(a == b for a, b in zip(first[k], first[everything], strict=True))
            shown = mean(x in true[i] for x, i in zip(captions, first[k], strict=True))
            print(f"k = {k}: same {same:.1%}, true {shown:.1%} (n = {len(captions)})")
            if k != everything:
                title = f"search, {k} of {everything} images scored again, times as fast as all"
                figure(title, taken[everything][0] / taken[k][0], "x")
            for mode, seconds, whole in zip(MODES, taken[k], taken[everything], strict=True):
                print(
                    f"    {mode}: {len(captions) / seconds:.1f} queries/s, "
                    f"{seconds / len(captions) / anew:.5f} of the time from files, "
                    f"{seconds / whole:.4f} of that from the index"
                )


if __name__ == "__main__":
    main()
