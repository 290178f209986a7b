"""Measures what the machine can do at best: the ceilings that other figures are compared with.

Prints versions, then the rates of matrix products and of copies.
"""

import platform
from functools import partial

import open_clip
import pytorch_lightning
import torch
import torch.cuda.nccl
import transformers

from scripts.bench.harness import DEVICE, copy_rate, figure, matrix_rate, medians, options

MEGABYTES = 256  # of a copy from the host


def versions() -> None:
    """Prints the versions of everything that a figure depends on."""
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(
        f"Lightning {pytorch_lightning.__version__}, open_clip {open_clip.__version__}, "
        f"transformers {transformers.__version__}"
    )
    if DEVICE != "cuda":
        print("no GPU")
        return
    card = torch.cuda.get_device_properties(0)
    print(f"{card.name}, {card.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")
    print(f"cuDNN {torch.backends.cudnn.version()}, NCCL {torch.cuda.nccl.version()}")


def host_rate(pinned: bool) -> float:
    """Returns the bytes a second of a copy from the host's memory to the device."""
    size = MEGABYTES * 2**20
    source = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    copy = partial(target.copy_, source, non_blocking=True)
    return size / medians([copy], 5, wall=True)[0]


def main() -> None:
    """Prints versions and one line for each rate."""
    options(__doc__)
    versions()
    tf32 = pinned = ordinary = None
    if DEVICE == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        tf32 = matrix_rate(torch.float32) / 1e12
        torch.backends.cuda.matmul.allow_tf32 = False
        pinned = host_rate(True) / 1e9
        ordinary = host_rate(False) / 1e9
    figure("matrix product, float32", matrix_rate(torch.float32) / 1e12, "TFLOP/s")
    figure("matrix product, TF32", tf32, "TFLOP/s")
    figure("matrix product, bfloat16", matrix_rate(torch.bfloat16) / 1e12, "TFLOP/s")
    figure("copy in the device's memory, read and write", copy_rate() / 1e9, "GB/s")
    figure("copy from pinned memory of the host", pinned, "GB/s")
    figure("copy from ordinary memory of the host", ordinary, "GB/s")


if __name__ == "__main__":
    main()
