"""Tiny random open_clip models, written as the folders that open_clip publishes."""

import json

import pytest
import torch
from open_clip import model
from open_clip.coca_model import CoCa
from safetensors.torch import save_file

WORDS = ["a", "red", "blue", "green", "cube", "sphere", "metal"]
WORDS += ["left", "of", "the", "right", "dog"]


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a model folder and gives its path."""

    def write(name="tiny", vocabulary=True, seed=0, vision=None, text=None, **top):
        path = tmp_path / name
        path.mkdir()
        config = {
            "embed_dim": 16,
            "vision_cfg": {
                "image_size": 32,
                "layers": 3,
                "width": 24,
                "head_width": 8,
                "patch_size": 8,
                **(vision or {}),
            },
            "text_cfg": {
                "context_length": 12,
                "vocab_size": len(WORDS) + 3 if vocabulary else 49408,
                "width": 16,
                "heads": 2,
                "layers": 3,
                **(text or {}),
            },
            **top,
        }
        torch.manual_seed(seed)
        arguments = {k: v for k, v in config.items() if k != "custom_text"}
        custom = config.get("custom_text") or "hf_model_name" in config["text_cfg"]
        kind = model.CustomTextCLIP if custom else model.CLIP
        network = (CoCa if "multimodal_cfg" in config else kind)(**arguments)
        for parameter in network.parameters():  # random norms and biases too, or errors could hide
            if parameter.ndim == 1:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        save_file(
            {k: v.contiguous() for k, v in network.state_dict().items()},
            path / "open_clip_model.safetensors",
        )
        preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear"}
        (path / "open_clip_config.json").write_text(
            json.dumps({"model_cfg": config, "preprocess_cfg": preprocess})
        )
        if vocabulary:
            (path / "vocabulary.txt").write_text("\n".join(WORDS) + "\n")
        return path

    return write
