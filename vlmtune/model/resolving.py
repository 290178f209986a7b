"""From the name of a model to the model: what `--model` and `vlmtune.load` take.

In: what a person types. Out: a model, zero-shot if it has no adapter. Never: a guess.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.zero_shot import ImagesAlone, ZeroShot
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.state_dicts import SUFFIXES
from vlmtune.backbones.weight_checks import check_none
from vlmtune.config import Spec, find_path, instantiate
from vlmtune.errors import UserError
from vlmtune.model.hub import HF, PEFT, hf_spec, hub_kind, is_hf_folder, is_hub_id, peft_base
from vlmtune.model.layout import CONFIG, WEIGHTS, is_peft
from vlmtune.model.loading import is_checkpoint, load_export, read_checkpoint
from vlmtune.model.model import Model
from vlmtune.storage.files import reading
from vlmtune.types import FeatureSpec

OPEN_CLIP = "vlmtune.backbones.open_clip.open_clip.OpenClip"
TIMM, TIMM_IMAGE = "timm:", "vlmtune.backbones.timm_image.TimmImage"
PUBLISHED = "published:"
PREFIXES = ("hf-hub", "local-dir", "timm", "published")  # before a colon: no name of open_clip
POOLED = FeatureSpec("pooled")  # a model without it scores by its fusion
STEM = re.compile(r"[a-z][a-z0-9_]*")  # of the YAML of a plug-in
FILES = (*SUFFIXES, ".ckpt", ".yaml", ".yml")  # names that end so are of files alone


def load(
    source: str | Path,
    pretrained: str | None = None,
    *,
    architecture: str | None = None,
    revision: str | None = None,
    backbone: Backbone | None = None,
    device: torch.device | str | None = None,
    precision: str | None = None,
    batch_size: int = 256,
    packages: Sequence[str] = (),
    texts: bool = True,
) -> Model:
    """Loads a model by its name, as `--model` of the command line does.

    Args:
        source: An export (folder or hub id), a `.ckpt` of a run, a model of Hugging Face (hub id,
            or a folder that `save_pretrained` wrote) of a supported type, an open_clip name
            ("ViT-B-32-quickgelu", with its weights "ViT-B-32-quickgelu:openai", or
            "hf-hub:org/repo") or folder, a PEFT adapter such as LoRA of one of these, "timm:" and a
            name of timm or its folder, the YAML of a backbone or one with `backbone` and `adapter`,
            or the stem of one in configs/plugins/models or backbones, "published:" and the name of
            weights that `vlmtune download` brought, or, with `architecture`, a weights file. A
            model without an adapter is zero-shot: by its embeddings, or by its matching head if it
            has no embeddings.
        pretrained: Weights for an open_clip name, or the base model of an export, a checkpoint or a
            PEFT adapter, if it is not where these say.
        architecture: The open_clip name that the weights in the file `source` (.pt, .pth, .bin,
            .safetensors) belong to; "ViT-B-32-quickgelu" for those fine-tuned from OpenAI's.
        revision: Commit, branch or tag of a hub id; None for its main branch. Pin a commit where
            numbers must not change. An export records its base model's revision itself.
        backbone: The backbone of an export, never adapted before; None builds it as the export
            describes.
        device: Where to compute; the accelerator if there is one, else the CPU.
        precision: "fp32" or "bf16" for the weights of a model without training; None for its
            default. A trained model computes as it was trained.
        batch_size: Images or captions encoded at a time; a CPU encodes 32 images.
        packages: Packages besides vlmtune that an export or a checkpoint may import classes from,
            such as `["mypackage"]`. No others are imported.
        texts: Whether the model must read texts. False also accepts an image-only model, whose
            `encode_image` works and whose `score` does not.

    Raises:
        UserError: There is no such model or device, a file is damaged or names a class of another
            package, the weights do not fit, or an option has no use for this model.
    """
    if str(source).startswith(PUBLISHED):
        # Most models are not in the list of sources.
        from vlmtune.model.published import find_published, with_text_map

        path, published = find_published(str(source))
        options = {"device": device, "batch_size": batch_size, "texts": texts}
        options |= {"pretrained": pretrained, "revision": revision, "precision": precision}
        if published.text_map_of is not None:
            model = with_text_map(load(published.text_map_of, **options), path)
            return model.batched(batch_size).to(device_of_this_machine(device))
        architecture = architecture or published.architecture
        return load(path, architecture=architecture, **options)
    name, pretrained = _tagged(_shipped(str(source)), pretrained)
    # A folder may have the name of a hub id, and it has no revisions.
    if revision is not None and not is_hub_id(name, pretrained):
        raise UserError(
            f"expected a hub id org/name with a revision, got {name!r}: leave the revision out"
        )
    # Before a download, which a wrong device would make for nothing.
    where = device_of_this_machine(device)
    if backbone is not None:
        model = load_export(name, backbone=backbone, revision=revision, packages=packages)
        trained = True
    else:
        if architecture is not None or _is_weights(Path(name)):
            name, pretrained = _in_architecture(name, pretrained, architecture)
        # An adapter of a YAML has the same random weights each time: an index can be searched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, trained = _named(name, pretrained, precision, revision, packages, texts)
    if precision is not None and trained:
        raise UserError(
            f"expected no precision for {name}, whose weights were trained in one, got "
            f"{precision!r}: leave it out"
        )
    return model.batched(batch_size).to(where)


def device_of_this_machine(name: torch.device | str | None) -> torch.device:
    """Returns a device, which must be there; without a name the accelerator, or else the CPU."""
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        # A device may have a name and yet not be in this machine.
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        line = " ".join(str(error).split())
        raise UserError(
            f"expected a device of this machine, got {str(name)!r} ({line}): use cpu"
        ) from error
    return device


def _is_weights(path: Path) -> bool:
    return path.suffix in SUFFIXES and path.is_file()


def _in_architecture(
    name: str, pretrained: str | None, architecture: str | None
) -> tuple[str, str]:
    """Turns a weights file and its architecture into an open_clip name and its weights."""
    if architecture is None:
        raise UserError(
            f"expected the open_clip architecture of the weights in {name}, got none: write "
            f"ARCHITECTURE:{name}, for example ViT-B-32-quickgelu:{name} for a ViT-B/32 that was "
            "fine-tuned from OpenAI's weights"
        )
    check_none(name, pretrained)
    return architecture, name


def _shipped(name: str) -> str:
    """The full path of an export that comes with vlmtune; any other name is unchanged."""
    if Path(name).exists():
        return name
    folder = find_path(name)
    if folder is None or not (folder / CONFIG).is_file():
        return name
    return str(folder)


def _check_file(name: str) -> None:
    """Raises `UserError` for a missing file, which would be taken for a model, and for a run."""
    if written := sorted(Path(name).glob("checkpoints/*.ckpt")):
        raise UserError(
            f"expected a model, got {name}, the folder of a run: name one of its checkpoints, such "
            f"as {written[-1]}"
        )
    is_file_name = Path(name).suffix in FILES and ":" not in name
    is_path = is_file_name or Path(name).is_absolute()
    if is_path and not Path(name).exists():
        raise UserError(
            f"expected a model in {name}, got no such file: check the spelling, or name where the "
            "model is now (of an index with --model)"
        )


def _named(
    name: str,
    pretrained: str | None,
    precision: str | None,
    revision: str | None,
    packages: Sequence[str],
    texts: bool,
) -> tuple[Model, bool]:
    """A model by its name, and whether it was trained by vlmtune."""
    _check_file(name)
    hub = _hub(name, pretrained, revision)
    if _is_export(name, hub):
        return load_export(name, revision=revision, pretrained=pretrained, packages=packages), True
    if _is_checkpoint(name):
        return read_checkpoint(Path(name), packages, pretrained), True
    spec = _spec(name, pretrained, revision, hub)
    if precision is not None:
        spec["backbone"].setdefault("init_args", {})["precision"] = precision
    return Model(*attached(spec, texts)), False


def backbone_spec(name: str) -> Spec:
    """Returns the spec of the backbone called `name`, for a training; see `load` for names.

    A model that vlmtune trained is a `UserError`.

    Example:
        >>> backbone_spec("ViT-B-32-quickgelu:openai")["init_args"]
        {'model': 'ViT-B-32-quickgelu', 'pretrained': 'openai'}
    """
    name, pretrained = _tagged(_shipped(name), None)
    _check_file(name)
    if _is_weights(Path(name)):
        _in_architecture(name, None, None)
    hub = _hub(name, pretrained, None)
    if _is_export(name, hub) or _is_checkpoint(name):
        raise UserError(
            f"expected a backbone without an adapter, got {name}, which vlmtune trained: name the "
            "folder that `vlmtune export --merged` writes, or continue a run with --ckpt-path"
        )
    return _spec(name, pretrained, None, hub)["backbone"]


def _tagged(name: str, pretrained: str | None) -> tuple[str, str | None]:
    """Splits an open_clip name with its weights, such as "ViT-B-32-quickgelu:openai"."""
    # "C:/models", "https://…" and "hf-hub:…" have a colon that separates no tag.
    first, colon, tag = name.partition(":")
    is_path = tag.startswith("//") or Path(name).exists()
    if pretrained is not None or not colon or first in PREFIXES or is_path:
        return name, pretrained
    return first, tag


def _hub(name: str, pretrained: str | None, revision: str | None) -> str | None:
    """What a repository of the hub holds; None for any other name."""
    is_elsewhere = Path(name).exists() or name.startswith(TIMM)
    if is_elsewhere or not is_hub_id(name, pretrained):
        return None
    return hub_kind(name, revision)


def _is_export(name: str, hub: str | None) -> bool:
    if hub == CONFIG:
        return True
    config = Path(name) / CONFIG
    weights = Path(name) / WEIGHTS
    has_files = config.is_file() or weights.is_file()
    return has_files and not is_peft(config)  # PEFT's folders have files of the same names


def _is_checkpoint(name: str) -> bool:
    return is_checkpoint(name) and Path(name).suffix not in (".yaml", ".yml")


def _spec(
    name: str, pretrained: str | None, revision: str | None, hub: str | None
) -> dict[str, Spec]:
    """The backbone and, if its YAML names one, the adapter of a model that is not yet trained."""
    path = Path(name)
    # A file or folder of the user comes before a plug-in of the same name.
    yaml_file = path if path.exists() else _plugin(name)
    if yaml_file is not None and yaml_file.is_file():
        check_none(name, pretrained)
        return _untrained_spec(yaml_file)
    if hub == PEFT or is_peft(path / CONFIG):
        return {"backbone": _peft_spec(name, revision, pretrained)}
    if hub == HF or is_hf_folder(path):
        check_none(name, pretrained)
        return {"backbone": hf_spec(name, revision)}
    if revision is not None:
        raise UserError(
            f"expected an export or a model of transformers with a revision, got {name} of "
            "open_clip, which only loads main branches: leave it out, or download that revision"
        )
    class_path, model = OPEN_CLIP, name
    if hub:
        model = f"hf-hub:{name}"
    elif name.startswith(TIMM):
        class_path, model = TIMM_IMAGE, name.removeprefix(TIMM)
    options = {"model": model, "pretrained": pretrained}
    return {"backbone": {"class_path": class_path, "init_args": options}}


def _peft_spec(name: str, revision: str | None, base: str | None) -> Spec:
    """The spec of the base model of a PEFT adapter, with the adapter merged.

    `base` is the base model; None for the one that the adapter names.
    """
    at = None
    if base is None:
        base, at = peft_base(name, revision)
    model, pretrained = _tagged(base, None)
    hub = _hub(model, pretrained, at)
    spec = _spec(model, pretrained, at, hub)["backbone"]
    spec["init_args"]["peft"] = f"{name}@{revision}" if revision else name
    return spec


def _plugin(stem: str) -> Path | None:
    """The YAML of a model or a backbone, of vlmtune or in the working directory."""
    if not STEM.fullmatch(stem):
        return None
    for kind in ("models", "backbones"):
        path = find_path(Path("configs/plugins", kind, f"{stem}.yaml"))
        if path is not None:
            return path
    return None


def _untrained_spec(path: Path) -> dict[str, Spec]:
    """The backbone and, if it names one, the adapter of a YAML."""
    spec = _read_spec(path)
    if "backbone" not in spec:
        return {"backbone": spec}
    for key, part in spec.items():
        # A part may be the path of another YAML, relative to this one.
        if isinstance(part, str):
            spec[key] = _read_spec(path.parent / part)
    return spec


def _read_spec(path: Path) -> Spec:
    expected = "a YAML with class_path and init_args, or with backbone and adapter,"
    fix = "write these keys"
    with reading(path, expected, fix):
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        names = spec.keys() & {"class_path", "backbone"}
    if not names:
        raise UserError(f"expected {expected} in {path}, got {', '.join(map(str, spec))}: {fix}")
    return spec


def attached(spec: dict[str, Spec], texts: bool = True) -> tuple[Backbone, Adapter]:
    """Makes a backbone with its adapter, by default the one that scores it as it is."""
    backbone = instantiate(spec["backbone"], Backbone)
    if texts and not backbone.encodes_texts:
        raise UserError(
            f"expected a model that reads texts, got {backbone.title}, which only reads images: "
            "use it with vlmtune probe or evaluate, or choose another"
        )
    if "adapter" in spec:
        adapter = instantiate(spec["adapter"], Adapter)
    # ViLT, BLIP-2 and LLaVA embed no image, so their fusion scores.
    elif backbone.fits(POOLED, "image") is not None and backbone.fusion is not None:
        from vlmtune.adapters.matching import Matching  # most models embed images and texts

        adapter = Matching(blocks=0)
    elif backbone.encodes_texts:
        adapter = ZeroShot()
    else:
        adapter = ImagesAlone()
    adapter.attach(backbone)
    return backbone, adapter
