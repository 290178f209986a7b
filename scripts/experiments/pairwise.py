"""LLaVA on two images and two captions at once, in both orders of the captions.

EqSim's pilot study (Wang et al. 2023, section 5.5 and table 7). In: a LLaVA and a benchmark of two
images and two captions (Winoground, EqBen). Out: accuracy in each order, and in both.
Never: a score of one image and one caption, for which `vlmtune evaluate` has `llava_yes_no.yaml`.

    python -m scripts.experiments.pairwise --benchmark winoground

Both images stand side by side in one, on a square. The question is the paper's. It tells "1;2" from
"2;1" by the first token of the answer, where the paper's authors read 20 answers of each part. A
model that repeats the order it was given is right in one order always and in the other never; what
it knows is what it gets right in both orders, or with the log-odds of both averaged.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vlmtune.backbones.hf.llava import Llava
from vlmtune.benchmarks.rules.paired import Paired, PairedItem, PairedItems
from vlmtune.cli.plugins import make_benchmarks
from vlmtune.data.images import read
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.model.resolving import device_of_this_machine
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.files import write_text

QUESTION = (
    "USER: <image>\nThere are two images (left and right). Now you have two captions: caption 1: "
    "{}; caption 2: {}. Please indicate which caption corresponds to the left image and which "
    "caption corresponds to the right one. The answer should follow the format: "
    '"#index for the left image; #index for the right image". For example, "1;2" represents that '
    "caption 1 corresponds to image left. ASSISTANT:"
)
COLUMNS = ("captions 1, 2", "captions 2, 1", "both orders", "mean of both")
CHANCES = (1 / 2, 1 / 2, 1 / 4, 1 / 2)


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    """Puts two images of one height side by side, in the middle of a grey square.

    The square keeps what an image processor that crops to a square would cut.
    """
    right = right.resize((max(1, round(right.width * left.height / right.height)), left.height))
    width = left.width + right.width
    side = max(width, left.height)
    square = Image.new("RGB", (side, side), (128, 128, 128))
    top, start = (side - left.height) // 2, (side - width) // 2
    square.paste(left, (start, top))
    square.paste(right, (start + left.width, top))
    return square


def log_odds(
    model: Llava, items: Sequence[PairedItem], question: str = QUESTION
) -> Float[Tensor, "n 2"]:
    """Log-odds that the captions are in the order of the images, for each order of the question."""

    def both_orders() -> Iterator[Tensor]:
        for item in items:
            image = side_by_side(*(read(picture) for picture in item.images))
            pixels = model.preprocess(image)[None].expand(2, -1, -1, -1)
            first, second = item.texts
            questions = [question.format(first, second), question.format(second, first)]
            yield model.compare(pixels, questions, ("1", "2")).cpu() * torch.tensor([1.0, -1.0])

    return torch.stack(list(both_orders()))


def right(odds: Float[Tensor, "n 2"]) -> list[Tensor]:
    """Which items are right by each of `COLUMNS`; a tie is wrong."""
    each = odds > 0
    return [each[:, 0], each[:, 1], each.all(dim=1), odds.mean(dim=1) > 0]


def table(items: Sequence[PairedItem], odds: Float[Tensor, "n 2"]) -> str:
    """A row of accuracies in % with their 95 % intervals for all items, and for each part."""
    lines = [f"| | n | {' | '.join(COLUMNS)} |", "| --- | ---: |" + " ---: |" * len(COLUMNS)]
    for part in ("", *dict.fromkeys(item.group for item in items if item.group)):
        rows = torch.tensor([not part or item.group == part for item in items])
        values = zip(right(odds), CHANCES, strict=True)
        n = int(rows.sum())
        cells = []
        for wins, chance in values:
            accuracy = cluster_robust_mean(wins[rows].double(), torch.arange(n), chance)
            cells.append(_cell(accuracy))
        lines.append(f"| {part or 'all'} | {n} | {' | '.join(cells)} |")
    chances = " | ".join(f"{100 * x:.1f}" for x in CHANCES)
    return "\n".join([*lines, f"| *chance* | | {chances} |"]) + "\n"


def _cell(value: MetricValue) -> str:
    assert value.low is not None
    assert value.high is not None
    return f"{100 * value.value:.1f} ({100 * value.low:.1f} to {100 * value.high:.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the table and shows it."""
    parser = argparse.ArgumentParser(description="LLaVA on two images and two captions at once.")
    parser.add_argument("--model", default="llava-hf/llava-1.5-7b-hf")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--benchmark", default="winoground", help="a stem, or a YAML")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/pairwise"))
    options = parser.parse_args(arguments)
    (benchmark, *others) = make_benchmarks([options.benchmark])
    if others or not isinstance(benchmark, Paired):
        raise UserError(
            f"expected one benchmark of two images and two captions, got {options.benchmark}: "
            "use winoground or eqben"
        )
    items = benchmark.items
    assert isinstance(items, PairedItems)
    device = device_of_this_machine(options.device)
    model = Llava(options.model, precision=options.precision).to(device)
    text = table(items.listed, log_odds(model, items.listed))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "pairwise.md", text)
    print(text)


if __name__ == "__main__":
    main()
