"""Tiny random models and corpora that several tests share."""

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from open_clip import model
from open_clip.coca_model import CoCa
from PIL import Image
from safetensors.torch import save_file

from data_builders.shard_builder import Record, ShardBuilder
from vlmtune.backbones.base import Backbone
from vlmtune.config import Spec
from vlmtune.types import Group

WORDS = ["a", "red", "blue", "green", "cube", "sphere", "metal"]
WORDS += ["left", "of", "the", "right", "dog"]


def write_model(
    path: Path,
    vocabulary: bool = True,
    seed: int = 0,
    vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    **top: Any,
) -> Path:
    """Writes a random open_clip model as the folder that open_clip publishes."""
    path.mkdir()
    tower = {"image_size": 32, "layers": 3, "width": 24, "head_width": 8, "patch_size": 8}
    words = len(WORDS) + 3 if vocabulary else 49408
    reader = {"context_length": 12, "vocab_size": words, "width": 16, "heads": 2, "layers": 3}
    towers = {"vision_cfg": tower | (vision or {}), "text_cfg": reader | (text or {})}
    config: dict[str, Any] = {"embed_dim": 16, **towers, **top}
    torch.manual_seed(seed)
    arguments = {k: v for k, v in config.items() if k != "custom_text"}
    custom = config.get("custom_text") or "hf_model_name" in config["text_cfg"]
    kind = model.CustomTextCLIP if custom else model.CLIP
    network = (CoCa if "multimodal_cfg" in config else kind)(**arguments)
    if isinstance(network, CoCa):  # open_clip leaves this one as the memory was
        torch.nn.init.normal_(network.text_decoder.text_projection)
    for parameter in network.parameters():  # random norms and biases too, or errors could hide
        if parameter.ndim == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(state, path / "open_clip_model.safetensors")
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear"}
    made = {"model_cfg": config, "preprocess_cfg": preprocess}
    (path / "open_clip_config.json").write_text(json.dumps(made))
    if vocabulary:
        (path / "vocabulary.txt").write_text("\n".join(WORDS) + "\n")
    return path


class Widths(Backbone):
    """The widths of CLIP ViT-B/32 and no model: for adapters that only need to know the sizes."""

    preprocess = encode_image = encode_text = None

    embed_dim, image_width, text_width, image_tokens = 512, 768, 512, 49
    text_special, logit_scale, fingerprint = (1, 1), 100.0, "widths"

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        for name, value in sizes.items():
            assert hasattr(self, name)
            setattr(self, name, value)


def halves(left: str, right: str, seed: int = 0) -> Image.Image:
    """A noisy picture of one colour on the left and another on the right."""
    generator = torch.Generator().manual_seed(seed)
    image = Image.new("RGB", (8, 8), left)
    image.paste(Image.new("RGB", (4, 8), right), (4, 0))
    noise = torch.randint(0, 40, (8, 8, 3), generator=generator, dtype=torch.uint8)
    return Image.blend(image, Image.fromarray(noise.numpy()), 0.2)


class Halves(ShardBuilder):
    """12 records: pairs of images and captions in which two colours change places."""

    def spec(self) -> Spec:
        # Nothing that lies anywhere was trained on, so `fit` warns of no benchmark.
        spec = super().spec()
        return {**spec, "init_args": {**spec["init_args"], "measured": ["/"]}}

    def records(self) -> Iterator[Record]:
        colours = itertools.combinations(("red", "green", "blue"), 2)
        kinds = (("cube", "sphere"), ("sphere", "cube"), ("cube", "dog"), ("metal cube", "dog"))
        for number, ((one, other), (left, right)) in enumerate(itertools.product(colours, kinds)):
            orders = ((one, other), (other, one))
            texts = tuple(f"a {x} {left} left of the {y} {right}" for x, y in orders)
            images, truth = (f"{number}-0", f"{number}-1"), torch.eye(2, dtype=torch.bool)
            true_ids = tuple(frozenset({text}) for text in texts)
            group = Group(f"r{number}", images, texts, texts, truth, true_ids, exhaustive=True)
            yield group, [encoded(halves(x, y, 2 * number + i)) for i, (x, y) in enumerate(orders)]


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plugin(name: str, /, **arguments: Any) -> dict[str, Any]:
    """The spec of an object of vlmtune."""
    return {"class_path": f"vlmtune.{name}", "init_args": arguments}


def cola_plugin(path: Path, **arguments: Any) -> dict[str, Any]:
    """The spec of a benchmark of what `write_cola` wrote."""
    arguments = {"path": str(path), "images": str(path.parent), **arguments}
    return plugin("benchmarks.cola_multi.ColaMulti", **arguments)


def keeping(**arguments: Any) -> dict[str, Any]:
    """The spec of Lightning's callback that keeps checkpoints."""
    return {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": arguments}


def fit_config(folder: Path, model: Path, shards: Path, /, **sections: Any) -> Path:
    """Writes the config of a tiny run on the CPU; `sections` add to its model, data and trainer."""
    config = {
        "model": {
            "backbone": plugin("backbones.open_clip.OpenClip", model=str(model)),
            "adapter": plugin("adapters.linear_probe.LinearProbe"),
            "objectives": [plugin("objectives.info_nce.InfoNCE")],
        },
        "data": {"train": [plugin("data.shards.ShardSet", path=str(shards))], "batch_size": 4},
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_progress_bar": False,
            "default_root_dir": str(folder / "run"),
        },
    }
    for section, values in sections.items():
        config[section] = {**config.get(section, {}), **values}
    folder.mkdir(exist_ok=True)
    (folder / "fit.yaml").write_text(json.dumps(config))
    return folder / "fit.yaml"


def write_shards(folder: Path) -> Path:
    """Writes three shards of four records."""
    Halves(records_per_shard=4).build(folder, progress=False)
    return folder


def write_cola(folder: Path) -> Path:
    """Writes nine items in the format of Cola's multi-object queries, in the tiny model's words."""
    folder.mkdir(parents=True, exist_ok=True)
    colours = itertools.combinations(("red", "green", "blue"), 2)
    rows = []
    for (one, other), shape in itertools.product(colours, ("cube", "sphere", "dog")):
        row = []
        for left, right in ((one, other), (other, one)):
            name = f"{left}-{right}-{shape}.png"
            halves(left, right, len(rows)).save(folder / name)
            row += [name, f"a {left} {shape} left of the {right} cube"]
        rows.append(row)
    path = folder / "cola.json"
    path.write_text(json.dumps(rows))
    return path


def write_arrow(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Writes a split of a dataset as `save_to_disk` lays it out."""
    import pyarrow

    folder.mkdir(parents=True)
    name = "data-00000-of-00001.arrow"
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_stream(str(folder / name), table.schema) as file:
        file.write_table(table)
    state = {"_data_files": [{"filename": name}], "_split": folder.name}
    (folder / "state.json").write_text(json.dumps(state))
