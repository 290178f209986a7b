"""Draws the pictures of README and docs/ from what `vlmtune quickstart` wrote to runs/quickstart.

Another folder is an argument: `python -m scripts.readme_pictures FOLDER`. transfer.svg comes from
docs/results/transfer_seeds.csv: a mark is the middle of the range over seeds.
"""

import base64
import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from PIL import Image

import vlmtune
from data_builders.worlds.scenes.requests import render
from vlmtune.cli.quickstart import CAPTIONS, CLIP
from vlmtune.report import RunReport

OUT = Path("docs/images")
PROFILE = Path("docs/results/transfer_seeds.csv")
RUNS = {"zero-shot": "clip", "seed-0/mm-adapter": "recipe", "seed-0/grounded-words": "mixture"}
SHAPES = {
    "clip": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "recipe": "M0-5L5 4H-5Z",
    "mixture": "M0-6.5L6.5 0L0 6.5L-6.5 0Z",
}
CHART = (  # a heading, or a label with its benchmark and metric
    "Words and sentences as in training",
    ("two objects", "cola_multi_seen", "accuracy"),
    ("relations (ARO)", "aro_relation", "accuracy"),
    ("left and right of two objects (SPAR)", "pug_spar", "accuracy/double_left_right"),
    "Words of training, recombined",
    ("cube and sphere", "cola_multi_unseen", "accuracy/cube and sphere"),
    ("cylinder and sphere", "cola_multi_unseen", "accuracy/cylinder and sphere"),
    ("cube and cylinder", "cola_multi_unseen", "accuracy/cube and cylinder"),
    "What training lacks",
    ("two colours never read", "cola_multi_unread", "accuracy"),
    ("second of two relations", "wordings", "accuracy/second of two relations"),
    ("“to the left of a sphere is a cube”", "wordings", "accuracy/inverted"),
    ("“the cube is not to the left of …”", "wordings", "accuracy/not related"),
    ("“there is no torus”", "wordings", "accuracy/absent"),
    "What CLIP knew: kept or forgotten",
    ("classification", "zero_shot", "accuracy"),
    ("retrieval, image to text, R@1", "retrieval", "image_to_text_recall@1"),
    ("the same, of words not trained", "objects", "image_to_text_recall@1"),
    ("small or large, not trained", "abilities", "accuracy/size"),
    ("shapes, in a prompt not trained", "abilities", "accuracy/shape"),
)
PROFILED = {  # the columns of the profile, with their marks
    "CLIP": "clip",
    "MM-Adapter": "recipe",
    "grounded words": "mixture",
}
DIMENSIONS = {  # with a second line of their label
    "as trained": "colours, relations, absence",
    "recombined words": "pairs that training lacks",
    "unread words": "colours, sizes, textures",
    "wordings": "19 forms of sentences",
    "counts": "up to eight objects",
    "scenes": "crowded, small, other cameras",
    "retained": "what CLIP knew",
}
SCENES = ("train/*", "cola/*", "eqben/eqbenkubric_attr/*", "held_out/held_out_objects_*")


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y}" x2="{to_x:.1f}" y2="{to_y}" class="{style}"/>'


def mark(x: float, y: float, model: str) -> str:
    return f'<path d="{SHAPES[model]}" transform="translate({x:.1f} {y})" class="{model}"/>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" class="{style}"/>'


def bar(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" class="{style}"/>'


def enlarged(path: Path, side: int) -> Image.Image:
    return Image.open(path).convert("RGB").resize((side, side), Image.Resampling.LANCZOS)


def embedded(path: Path, x: float, y: float, side: int) -> str:
    buffer = io.BytesIO()
    enlarged(path, 256).save(buffer, "JPEG", quality=90)
    data = base64.b64encode(buffer.getvalue()).decode()
    frame = f'x="{x}" y="{y}" width="{side}" height="{side}"'
    return f'<image {frame} href="data:image/jpeg;base64,{data}"/>'


def save_drawing(name: str, width: int, height: int, parts: Iterable[str]) -> None:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    # An image cannot know the colour of the page behind it, so it brings its background.
    ground = box(0.5, 0.5, width - 1, height - 1, "ground")
    style = (OUT / "drawing.css").read_text(encoding="utf-8")
    body = "\n".join([f"<style>\n{style}</style>", ground, *parts])
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'
    (OUT / name).write_text(svg, encoding="utf-8")


def draw_swap(folder: Path) -> None:
    """Draws two scenes, their two captions, and the scores of CLIP and of the adapter."""
    images = [folder / f"world/images/cola/cola_unseen_{n:06}.png" for n in (0, 1)]
    columns, side, y = (300, 468), 152, 212
    parts = [embedded(path, x, 20, side) for path, x in zip(images, columns, strict=True)]
    parts.append(text(24, 92, "Which picture is which?", "strong"))
    parts.append(text(24, 116, "The higher score of a row wins.", "muted"))
    for run, source in (("zero-shot", CLIP), ("seed-0/grounded-words", folder / "export")):
        report = RunReport.load(folder / run / "report.json")
        metric = report.metric("cola_multi_unseen", "accuracy/cube and sphere")
        summary = f"both rows right in {metric.value * metric.n:.0f} of {metric.n} such pairs"
        parts += [mark(31, y - 5, RUNS[run]), text(46, y, report.name, "strong")]
        parts.append(text(columns[1] + side, y, summary, "muted small", "end"))
        scores = vlmtune.load(source, device="cpu").score(images, CAPTIONS).T.tolist()
        for true, (caption, row) in enumerate(zip(CAPTIONS, scores, strict=True)):
            y += 44
            parts.append(text(24, y - 4, f"“{caption}”"))
            for column, score in enumerate(row):
                shown, style, frame = f"{score:.2f}", "muted", "empty"
                if score == max(row):
                    verdict, sign = ("good", "✓") if column == true else ("bad", "✗")
                    shown, style, frame = f"{shown} {sign}", f"{verdict} strong", f"{verdict}-box"
                parts.append(box(columns[column], y - 26, side, 34, frame))
                parts.append(text(columns[column] + side / 2, y - 4, shown, style, "middle"))
        y += 50
    save_drawing("swap.svg", 644, y - 26, parts)


def draw_gained_and_forgotten(folder: Path) -> None:
    """Draws three models on what training has, what it lacks and what CLIP knew before."""
    reports = {model: RunReport.load(folder / run / "report.json") for run, model in RUNS.items()}
    left, right, y = 316, 586, 36
    parts = [line(592, 22, 592, 40, "chance"), text(600, y, "chance", "small")]
    for x, (model, report) in zip((24, 180, 390), reports.items(), strict=True):
        parts += [mark(x + 7, y - 5, model), text(x + 20, y, report.name, "small")]
    for row in CHART:
        if isinstance(row, str):
            y += 36
            parts.append(text(24, y, row, "strong"))
            continue
        y += 26
        label, benchmark, name = row
        metrics = {model: report.metric(benchmark, name) for model, report in reports.items()}
        at = {model: left + (right - left) * metric.value for model, metric in metrics.items()}
        chance = left + (right - left) * (metrics["clip"].chance or 0)
        change = "gained" if at["mixture"] > at["clip"] else "lost"
        parts.append(text(36, y, label, "small"))
        parts.append(line(left, y - 5, right, y - 5, "track"))
        parts.append(line(chance, y - 14, chance, y + 4, "chance"))
        parts.append(line(at["clip"], y - 5, at["mixture"], y - 5, change))
        for x, (model, metric) in zip((636, 684, 732), metrics.items(), strict=True):
            parts.append(mark(at[model], y - 5, model))
            parts.append(text(x, y, f"{100 * metric.value:.0f}", f"{model} small", "end"))
    y += 34
    for x, change in ((36, "gained"), (120, "lost")):
        parts += [line(x, y - 5, x + 24, y - 5, change), text(x + 30, y, change, "small")]
    for n in (0, 25, 50, 75, 100):
        parts.append(text(left + (right - left) * n / 100, y, str(n), "muted small", "middle"))
    parts.append(text(732, y, "%, seed 0", "muted small", "end"))
    save_drawing("gained_and_forgotten.svg", 760, y + 20, parts)


def draw_profile() -> None:
    """Draws how far three models carry beyond training: the range of three seeds by dimension."""
    with PROFILE.open(encoding="utf-8") as file:
        rows = {row["dimension: part"]: row for row in csv.DictReader(file)}
    left, scale, y, lane = 240, 3.5, 36, 15
    parts = [line(650, 22, 650, 40, "chance"), text(658, y, "chance", "small")]
    for x, (name, model) in zip((24, 90, 210), PROFILED.items(), strict=True):
        parts += [mark(x + 7, y - 5, model), text(x + 20, y, name, "small")]
    y += 12
    for dimension, hint in DIMENSIONS.items():
        row = rows[dimension]
        top = y + 10
        middle = top + lane * len(PROFILED) / 2
        parts.append(text(24, middle - 2, dimension, "strong"))
        parts.append(text(24, middle + 15, hint, "muted small"))
        chance = left + scale * float(row["chance"])
        parts.append(line(chance, top, chance, top + lane * len(PROFILED), "chance"))
        for number, (name, model) in enumerate(PROFILED.items()):
            lowest, _, highest = row[name].partition(" to ")
            low = float(lowest)
            high = float(highest or lowest)
            at = top + lane * number + 8
            start = left + scale * low
            parts.append(line(left, at, left + scale * 100, at, "track"))
            width = scale * (high - low)
            parts.append(bar(start, at - 3, width, 6, f"{model} range"))
            parts.append(mark(start + width / 2, at, model))
            shown = f"{low:.0f}"
            if f"{high:.0f}" != shown:
                shown = f"{shown} to {high:.0f}"
            parts.append(text(700, at + 4, shown, f"{model} small", "end"))
        y = top + lane * len(PROFILED) + 6
    y += 18
    for n in (0, 25, 50, 75, 100):
        parts.append(text(left + scale * n, y, str(n), "muted small", "middle"))
    parts.append(text(700, y, "%, 3 seeds", "muted small", "end"))
    save_drawing("transfer.svg", 724, y + 18, parts)


def save_sheet(name: str, rows: Sequence[Sequence[Image.Image]]) -> None:
    """Pastes square images of one size in rows, four pixels apart."""
    step = rows[0][0].width + 4
    sheet = Image.new("RGB", (step * len(rows[0]) - 4, step * len(rows) - 4), "white")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            sheet.paste(image, (x * step, y * step))
    sheet.save(OUT / name, quality=85)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart")
    draw_swap(folder)
    draw_gained_and_forgotten(folder)
    draw_profile()
    world = json.loads((OUT / "world.json").read_text(encoding="utf-8"))
    fixed = {field: [value] for field, value in world["scene"].items()}
    sweeps, scenes = [], []
    for field, values in world["sweeps"].items():
        request = {"objects": [{}, {}, {}], "sweep": {**fixed, field: values}}
        sweeps.append([image for image, _ in render(request, size=152)])
    for files in SCENES:
        paths = sorted((folder / "world/images").glob(files))
        scenes.append([enlarged(path, 128) for path in paths[:6]])
    save_sheet("world.jpg", sweeps)
    save_sheet("scenes.jpg", scenes)


if __name__ == "__main__":
    main()
