"""The options of `vlmtune probe`.

In: the function that declares a command. Out: the command's options. It imports nothing heavy.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmtune.storage.remote.address import path_or_url

DEFAULT_WIDTHS = [0, 128, 1024, 2048, 16384]
SUMMARY = "probe what an embedding knows of how images changed"
PROBE = """\
It transforms each image in 31 ways (fine) and in 10 categories (categories), embeds the results
with the frozen model, and trains small networks to tell them apart (Rashtchian et al. 2023, Tables
1 to 6). Embeddings are stored: a second run with other probes encodes nothing. With several models
or layers each has its own folder, and the tables have them side by side.
Look at the transformations first:
  vlmtune probe --images photos --pictures sheets"""
IMAGES = """a folder of images (its subfolders are classes, train/ and test/ are splits), a table,
or a folder or URL of tars"""
LABELS = """what holds the semantic class: a column of the table or of the .json beside an image,
or "cls" of a tar; in a folder of images the folder's name by default"""
TRANSFORMATIONS = "fine (31 classes), categories (10, some held out), or both (both by default)"
WIDTHS = f"""hidden layers, 0 for a linear probe ({" ".join(map(str, DEFAULT_WIDTHS))} by default);
1024 and 2048 also have semantic and two-head probes"""
TIMM = "timm:NAME for an image model of timm, or timm:FOLDER"
FROZEN = "also probe the frozen original of a trained model; tables.md has the differences"
TEXT = """a joint adapter such as MM-Adapter reads it with each image; its [CLS] output is probed
(%(default)s)"""
LAYER = """one or several of pooled; before-projection, what the model projects into the embedding;
patches-K or class-K, the mean patch or the class token, K layers from the end (pooled by
default)"""
STYLES = "folder of your ONNX graphs for style transfer and DeepDream (docs/probe.md)"
SIDE = "each image is cut to a square and scaled to this side first (%(default)s)"


def declare(
    command: Callable[..., Any], model: str, pretrained: str, architecture: str
) -> Callable[..., Any]:
    """Declares the command and its options, but for those of computing.

    `--model` and `--out` are required unless `--pictures` is given, which `run` checks.

    Args:
        command: Declares a command, and returns the function that declares its options.
        model: Help of `--model`, as for other commands.
        pretrained: Help of `--pretrained`.
        architecture: Help of `--architecture`.

    Returns:
        The function that declares further options.
    """
    path: Any = {"type": Path}
    add = command("probe", SUMMARY, PROBE)
    add("--model", nargs="+", metavar="MODEL", help=f"{model}, or {TIMM}; several are compared")
    add("--pretrained", help=pretrained)
    add("--architecture", metavar="NAME", help=architecture)
    add("--images", required=True, type=path_or_url, metavar="PATH", help=IMAGES)
    add("--labels", metavar="NAME", help=LABELS)
    add("--out", **path, help="folder of the report")
    add("--pictures", **path, metavar="DIR", help="only write sheets of the transformations")
    names = ("fine", "categories")
    add("--transformations", nargs="+", choices=names, default=list(names), help=TRANSFORMATIONS)
    add("--styles", **path, metavar="DIR", help=STYLES)
    add("--frozen", action="store_true", help=FROZEN)
    add("--text", default="a photo", help=TEXT)
    add("--layer", nargs="+", default=["pooled"], metavar="LAYER", help=LAYER)
    add("--widths", type=int, nargs="+", default=DEFAULT_WIDTHS, metavar="N", help=WIDTHS)
    add("--steps", type=int, default=1000, help="training steps of a probe (%(default)s)")
    add("--runs", type=int, default=5, help="probes of each kind (%(default)s)")
    add("--limit", type=int, metavar="N", help="images of each split, at most; all by default")
    add("--side", type=int, default=224, help=SIDE)
    add("--seed", type=int, default=0, help="of transformations and probes (%(default)s)")
    add("--name", help="name of the run in reports; the model's by default")
    return add
