"""Style transfer and DeepDream, by networks of the user.

In: a folder with an ONNX graph or several for each style. Out: a transformation for each.
Never: a downloaded weight, or one that is unpickled.

A graph takes one image, float32 (1, 3, height, width), RGB in [0, 255], and returns one of that
form, as the fast-neural-style graphs of the ONNX model zoo do. A network with a style image or with
several iterations is exported with them inside. Of several graphs each image gets one at random, as
DeepDream needs for 7 to 12 iterations.
Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import hashlib
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmtune.errors import UserError, imported
from vlmtune.probing.colours import to_image
from vlmtune.probing.parameters import OneOf, Transformation, transformation
from vlmtune.storage.files import regular

SUFFIX = ".onnx"


def load_styles(folder: Path, names: Collection[str]) -> dict[str, Transformation]:
    """Returns the transformations of `NAME.onnx`, or of `NAME-1.onnx`, `NAME-2.onnx` ..., by name.

    `names` are the styles of the tasks.
    """
    files = sorted(Path(folder).glob(f"*{SUFFIX}"))
    unknown = [file.stem for file in files if _style(file) not in names]
    if not files or unknown:
        known = ", ".join(f"{name}{SUFFIX}" for name in names)
        got = f"{unknown[0]}{SUFFIX}" if unknown else "none"
        raise UserError(f"expected graphs in {folder} called {known}, got {got}: rename it")
    graphs: dict[str, list[tuple[str, str]]] = {}
    for file in files:
        path = str(file.resolve())
        content = regular(file).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        _session(path, digest)  # fails now rather than after the first images
        graphs_of_style = graphs.setdefault(_style(file), [])
        graphs_of_style.append((path, digest))
    styles = {}
    for name, several in graphs.items():
        graph = OneOf(tuple(several))
        styles[name] = transformation(stylize, graph=graph)
    return styles


def _style(file: Path) -> str:
    return re.sub(r"-\d+$", "", file.stem)


def stylize(image: Image.Image, graph: tuple[str, str]) -> Image.Image:
    """Applies a graph to an image; if the graph has a fixed size, the image is scaled to it.

    `graph` is its file, and the digest of the file's content, which names the pixels in a store.
    """
    file, digest = graph
    session = _session(file, digest)
    # `_session` has checked that there is one input of four dimensions.
    (given,) = session.get_inputs()
    height, width = given.shape[2:]
    scaled = image
    if isinstance(height, int) and isinstance(width, int):  # else names of free dimensions
        scaled = image.resize((width, height), Image.Resampling.BICUBIC)
    # The graph takes planes of channels, PIL takes pixels.
    pixels = np.asarray(scaled, dtype=np.float32)
    planes = pixels.transpose(2, 0, 1)[None]
    outputs = session.run(None, {given.name: planes})
    styled_planes = np.asarray(outputs[0])[0]
    styled_pixels = styled_planes.transpose(1, 2, 0).astype(np.float32)
    styled = to_image(styled_pixels)
    return styled.resize(image.size, Image.Resampling.BICUBIC)


@lru_cache(maxsize=16)
def _session(file: str, digest: str) -> Any:
    runtime = imported("onnxruntime", "for --styles", "pip install 'vlmtune[onnx]'")
    try:
        session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises errors of its own
        line = " ".join(str(error).split())[:120]
        raise UserError(f"expected an ONNX graph in {file}, got {line}: export it again") from error
    # A graph may have more outputs than the image, which is the first.
    ends = [*session.get_inputs(), session.get_outputs()[0]]
    shapes = [end.shape for end in ends]
    if [len(shape) for shape in shapes] != [4, 4]:
        raise UserError(
            f"expected a graph from one image (1, 3, height, width) to another in {file}, got "
            f"{shapes}: export it with its style inside"
        )
    return session
