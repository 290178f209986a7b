"""Measures how fast an MM-Adapter scores image-text pairs, in pairs per second and in memory.

Requirement: at least 3 times as fast as the straightforward form, on two CPU cores, with ViT-B/32's
sizes (49 image tokens of width 768, text tokens of width 512) and captions of 12 words; the same
scores, in less memory.

Straightforward is the paper's form: each caption padded to 77 tokens, and each pair taken through
the whole stack of torch's own transformer layers, with the same weights. Its projected image
tokens, too, are computed once per image.

How much faster it can be by counting multiplications, for the MDETR style: a pair has T tokens,
126 padded (49 + 77) and 63 trimmed (49 + 12 + start and end); w is 512 and the feed-forward layer
has 4 w hidden units.

    straightforward  encoder: queries, keys, values and output 4 T w^2, feed-forward 8 T w^2,
                     attention 2 T^2 w; decoder: keys and values 2 T w^2, and for one token
                     6 w^2 + 8 w^2 and 2 T w.  T = 126: 482 million
    vlmtune          the same without queries, keys and values of the encoder (3 T w^2, once per
                     image and caption) and without keys and values of the decoder (w^2 for folding
                     the query, once; 2 h T w for h = 4 heads), trimmed.  T = 63: 156 million

That is 3.1; the script prints it for the style it runs, with what is computed once spread over the
pairs. Measured: both forms on the same features and weights, in child processes of their own, so
that each has its own peak of memory; the median of the rounds counts. On CUDA, where there is a
GPU, also in bfloat16.

    python scripts/bench/joint_scoring.py [--style Mdetr] [--images 24] [--texts 16] [--rounds 3]
"""

import argparse
import importlib
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.base import FusionStyle, with_cls
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.adapters.words import masked_mean, word_mask
from vlmtune.backbones.base import Backbone
from vlmtune.types import Features

STYLES = {
    "Mdetr": "mdetr",
    "Flava": "flava",
    "Albef": "albef",
    "Fiber": "fiber",
    "FiberMM": "fiber_mm",
}
PATCHES, IMAGE_WIDTH, WIDTH, WORDS, CONTEXT = 49, 768, 512, 12, 77
REQUIRED = 3.0  # times as fast, MDETR style, on two CPU cores
PAIRS = 128  # in one call of the straightforward form
