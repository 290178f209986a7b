"""The options of `vlmtune probe`.

In: the function that declares a command. Out: the command's options. Never: a heavy import.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmtune.cli.option_names import at_least
from vlmtune.storage.remote.address import path_or_url

DEFAULT_WIDTHS = [0, 128, 1024, 2048, 16384]
SUMMARY = "probe how much an embedding reveals about image transformations"
PROBE = """\
It transforms each image in 31 ways (fine) and in 10 categories (categories), embeds the results
with the frozen model, and trains small networks (probes) to predict the transformation from the
embedding (Rashtchian et al. 2023, Tables 1 to 6). Embeddings are stored, so a second run with other
probes encodes nothing. With several models or layers each gets its own folder, and the tables show
them side by side.
Look at the transformations first:
  vlmtune probe --images photos --pictures sheets"""
IMAGES = """a folder of images (its subfolders are classes, train/ and test/ are splits), a table,
or a folder or URL of tars"""
LABELS = """where the semantic class is: a column of the table, a key of the .json next to an image,
or "cls" of a tar; in a folder of images it is the folder's name by default"""
TRANSFORMATIONS = "fine (31 classes), categories (10, some held out), or both (both by default)"
WIDTHS = f"""widths of the hidden layer, 0 for a linear probe
({" ".join(map(str, DEFAULT_WIDTHS))} by default); 1024 and 2048 also get
semantic and two-head probes"""
TIMM = "timm:NAME for an image model of timm, or timm:FOLDER"
FROZEN = "also probe the frozen original of a trained model; tables.md has the differences"
TEXT = """the text that a joint adapter such as MM-Adapter reads with each image; its [CLS] output
is probed (%(default)s)"""
LAYER = """one or more of: pooled; before-projection, what the model projects into the embedding;
patches-K or class-K, the mean patch or the class token, K layers from the end (pooled by
default)"""
STYLES = "folder of your ONNX graphs for style transfer and DeepDream (docs/probe.md)"
SIDE = "side of the square that each image is first cropped and scaled to (%(default)s)"


def declare(
    command: Callable[..., Any], model: str, add_model: Callable[..., None]
) -> Callable[..., Any]:
    """Declares the command and its options, except where features are stored.

    `--model` and `--out` are required unless `--pictures` is given, which `run` checks. `command`
    declares a command and returns what declares its options, as this function does; `model` is the
    help of `--model`, and `add_model` declares the options that all commands with a model have.
    """
    add = command("probe", SUMMARY, PROBE)
    add("--model", nargs="+", metavar="MODEL", help=f"{model}, or {TIMM}; several are compared")
    add_model(add)
    add("--images", required=True, type=path_or_url, metavar="PATH", help=IMAGES)
    add("--labels", metavar="NAME", help=LABELS)
    add("--out", type=Path, help="folder of the report")
    add("--pictures", type=Path, metavar="DIR", help="only write sheets of the transformations")
    names = ("fine", "categories")
    add("--transformations", nargs="+", choices=names, default=list(names), help=TRANSFORMATIONS)
    add("--styles", type=Path, metavar="DIR", help=STYLES)
    add("--frozen", action="store_true", help=FROZEN)
    add("--text", default="a photo", help=TEXT)
    add("--layer", nargs="+", default=["pooled"], metavar="LAYER", help=LAYER)
    add("--widths", type=at_least(0), nargs="+", default=DEFAULT_WIDTHS, metavar="N", help=WIDTHS)
    add("--steps", type=at_least(1), default=1000, help="training steps per probe (%(default)s)")
    add("--runs", type=at_least(1), default=5, help="number of probes of each kind (%(default)s)")
    add("--limit", type=at_least(2), metavar="N", help="at most N images per split; all by default")
    add("--side", type=at_least(8), default=224, help=SIDE)
    add("--seed", type=int, default=0, help="seed of transformations and probes (%(default)s)")
    add("--name", help="name of the run in reports; by default the model's name")
    return add
