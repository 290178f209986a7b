"""Image models of timm without texts: supervised, MAE, DINO and others.

In: a model name, then images. Out: image features. Never: random weights unasked.
"""

import sys
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import timm
import torch
from jaxtyping import Float
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from timm.models import is_model, parse_model_name
from timm.models.hiera import Hiera
from timm.models.hieradet_sam2 import HieraDet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.config_sizes import check_sizes, check_weights_fill
from vlmtune.backbones.hf.loading import locate
from vlmtune.backbones.hub_connection import hub_or_cache
from vlmtune.backbones.open_clip.loading import HUB, LOCAL, RANDOM, same_random_weights
from vlmtune.backbones.open_clip.towers import EvaImageTower, TimmImageTower, plain_eva
from vlmtune.backbones.open_clip.weights import check_weights
from vlmtune.backbones.staging import gradients, no_such_layer, state_after, unmasked
from vlmtune.backbones.state_dicts import read_state_dict
from vlmtune.backbones.timm_classifier import TimmClassifier, take_classifier
from vlmtune.backbones.weight_checks import DTYPES, check_none, digest, file_facts, loaded_whole
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json
from vlmtune.types import Features, FeatureSpec, Pixels, Pooled


class TimmImage(Backbone):
    """An image model of timm, loaded frozen and in evaluation mode.

    The embedding is what the classifier reads; the classifier stands apart. Tokens are the patches
    of a transformer's block, or the places of a feature map of a convolutional stage, row by row;
    widths of stages may differ. A plain vision transformer also has states, class token included.

    Args:
        model: A name of timm with the tag of its weights ("vit_base_patch16_224.mae"), a hub id
            ("org/repo"), or a folder with timm's `config.json` and weights ("local-dir:path" or
            the path; relative to the working directory or else to the repository).
        pretrained: For a name: a file with its weights (.pt, .pth, .bin, .safetensors), loaded
            without running its code, or "random". None for the weights that the tag names.
        precision: Type of the weights.

    Attributes:
        labels: The classes of the classifier: those that the model's config names, ImageNet's
            WordNet ids for as many outputs as it has classes, or else numbers from "0" on. Empty
            without a classifier: for self-supervised weights, for weights from a file, whose
            classifier is left out, and for models whose scores need more than pooled features, as
            those that average two classifiers.

    Example:
        >>> backbone = TimmImage("vit_tiny_patch16_224", "random")
        >>> backbone.embed_dim, backbone.image_tokens, backbone.image_tower.layers
        (192, 196, 12)
    """

    encodes_texts = False
    no_fusion = "it reads no texts"

    def __init__(
        self,
        model: str,
        pretrained: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        super().__init__()
        self._dtype = DTYPES[precision]
        self.random_weights = pretrained == RANDOM
        network, self._classifier, self.weights_file = _load(model, pretrained)
        if self._classifier is not None:
            self.labels = self._classifier.labels
        self.model: Any = network.to(self._dtype).eval().requires_grad_(False)
        # Mean, deviation, size and crop that belong to these weights.
        self._data = resolve_model_data_config(network)
        transform: Any = create_transform(**self._data, is_training=False)
        self.preprocess = transform
        self.image_tower = self._tower = _tower(self.model, self._dtype)
        # These have no norm after the last stage, and refuse to be asked for one.
        self._norms = not isinstance(network, Hiera | HieraDet)
        self._layers = 0
        if hasattr(network, "forward_intermediates"):
            self._layers = len(network.feature_info)
        self._measure()
        self.eval()

    def _measure(self) -> None:
        with torch.no_grad():
            pixels = self.blank().to(self._dtype)
            # Not every network of timm states these sizes, so they are measured.
            self.embed_dim = int(self._pooled(pixels).shape[1])
            self.image_tokens = 0
            self.image_width = self.embed_dim
            if self._layers:
                _, self.image_tokens, self.image_width = self._tokens(pixels, -1).shape

    @cached_property
    @override
    def fingerprint(self) -> str:
        # What a network prints does not say how a transformer pools.
        pooling = getattr(self.model, "global_pool", None)
        return digest([repr(self.model), str(pooling), self._data], self.model)

    @override
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Features:
        self.check_fits(spec, "image")
        pixels = pixels.to(device=self.device, dtype=self._dtype)
        with gradients(spec):
            if spec.kind == "pooled":
                return Pooled(self._pooled(pixels).float())
            if spec.kind == "tokens" or self._tower is None:
                return unmasked(self._tokens(pixels, spec.layer))
            start = self._tower.start(pixels)
            return state_after(self._tower, start, spec.layer)

    @override
    def classify(self, embeddings: Float[Tensor, "n d"]) -> Float[Tensor, "n C"]:
        if self._classifier is None:
            return super().classify(embeddings)
        return self._classifier(embeddings)

    def _pooled(self, pixels: Pixels) -> Float[Tensor, "n d"]:
        maps = self.model.forward_features(pixels)
        return self.model.forward_head(maps, pre_logits=True)

    def _tokens(self, pixels: Pixels, layer: int) -> Float[Tensor, "n t w"]:
        """Patches, or places of a feature map, after layer `layer`, counted from the end."""
        (maps,) = self.model.forward_intermediates(
            pixels,
            indices=[self._layers + layer],
            norm=self._norms and layer == -1,
            stop_early=True,
            output_fmt="NCHW",  # the one format that every model has
            intermediates_only=True,
        )
        return maps.flatten(2).transpose(1, 2)

    @override
    def encode_text(self, texts: Sequence[str], spec: FeatureSpec) -> NoReturn:
        raise UserError(
            f"expected a model that reads texts, got {self.title} of timm, which only reads "
            "images: choose another"
        )

    @override
    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        if modality == "text":
            return "it only reads images"
        if spec.kind == "words":
            return "images have no words"
        if spec.kind == "state" and self._tower is None:
            return f"{type(self.model).__name__} is not a plain transformer"
        if spec.kind == "tokens" and not self._layers:
            return f"timm shows no layers of {type(self.model).__name__}"
        return no_such_layer(spec, self._layers)


def _tower(network: nn.Module, dtype: torch.dtype) -> TimmImageTower | None:
    # open_clip holds models of timm as a trunk with a head.
    visual: Any = SimpleNamespace(trunk=network, head=nn.Identity())
    # A subclass may run its blocks differently.
    if type(network) is VisionTransformer:
        return TimmImageTower(visual, dtype)
    return EvaImageTower(visual, dtype) if plain_eva(network) else None


def _load(
    model: str, pretrained: str | None
) -> tuple[Any, TimmClassifier | None, dict[str, str] | None]:
    """Returns the network without its classifier, that, and the facts of a weights file."""
    name = _located(model)
    # Names from the hub or a folder have a scheme, and bring their weights.
    built_in = parse_model_name(name)[0] is None
    file = None
    if pretrained is not None and pretrained != RANDOM:
        file = Path(pretrained).expanduser()
    if built_in and pretrained is None:
        _check_tag(name)
    if not built_in:
        check_none(model, pretrained)
    with loaded_whole(f"weights of {model}"):
        if name.startswith(LOCAL):
            _check_sizes(Path(name.removeprefix(LOCAL)), name)
        asks_hub = pretrained is None and not name.startswith(LOCAL)
        with hub_or_cache(model) if asks_hub else same_random_weights(pretrained):
            network: Any = timm.create_model(name, pretrained=pretrained is None)
        classifier = take_classifier(network)
    if file is None:
        return network, classifier, None
    _fill(network, file, name)
    return network, None, file_facts(file, name)


def _check_sizes(folder: Path, name: str) -> None:
    config = read_json(folder / "config.json", "the config of a model of timm", shape=dict)
    check_sizes(config, str(folder))
    check_weights_fill(partial(timm.create_model, name), folder, str(folder))


def _located(model: str) -> str:
    """The name timm knows a model by; folders become absolute."""
    if model.startswith(HUB) or is_model(model):
        return model
    name = locate(model.removeprefix(LOCAL), "a model name of timm, ")
    is_folder = Path(name).is_absolute()
    return f"{LOCAL}{name}" if is_folder else f"{HUB}{name}"


def _check_tag(name: str) -> None:
    """Raises a `UserError` for a name without the tag of its weights."""
    architecture, _, tag = name.partition(".")
    known = timm.list_pretrained(f"{architecture}.*")
    tags = [full_name.partition(".")[2] for full_name in known]
    if tag not in tags:
        raise UserError(
            f"expected the tag of weights of {architecture} after a dot, got {name!r}: add one of "
            f"{', '.join(tags) or 'none'}, or set pretrained to a file or to random"
        )


def _fill(network: Any, file: Path, name: str) -> None:
    """Loads the weights of a file, all but its classifier's."""
    state = read_state_dict(file)
    # Each family of timm renames the weights of older versions and of other authors itself.
    family = sys.modules[type(network).__module__]
    convert = getattr(family, "checkpoint_filter_fn", None)
    if convert is not None:
        state = convert(state, network)
    classifiers = network.pretrained_cfg.get("classifier") or ()
    if isinstance(classifiers, str):
        classifiers = (classifiers,)
    dropped = tuple(f"{part}." for part in classifiers)
    kept = {key: value for key, value in state.items() if not key.startswith(dropped)}
    check_weights(network, kept, file, name)
    network.load_state_dict(kept)
