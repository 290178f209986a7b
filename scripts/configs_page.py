"""Writes configs/README.md: every config with the first sentence of its header.

In: the comments that the YAMLs of configs start with. Out: the page. Never: a value of a config.
"""

import re
from itertools import takewhile
from pathlib import Path

from vlmtune.config import ROOT

CONFIGS = ROOT / "configs"
PAGE = CONFIGS / "README.md"
WIDTH = 100  # characters of a sentence that stands in the page as a whole
HEAD = """\
# The configs

`python -m scripts.configs_page` writes this page from the comments that the configs start with. The
header of an experiment has the commands that run it, how long a run takes, and what was published
or measured. The paths work in a checkout and with an installed package.
"""
NOTES = {
    "plugins/adapters": "An adapter is the part that is trained.",
    "plugins/backbones": "A backbone is the pre-trained model.",
    "plugins/benchmarks": "`vlmtune evaluate --benchmarks STEM`. Headers say where the files are.",
    "plugins/builders": "`vlmtune build STEM --out FOLDER` writes a corpus into shards.",
    "plugins/models": "A backbone and the adapter that scores it: `vlmtune evaluate --model FILE`.",
    "plugins/modules": "A method of a paper, by its name: `vlmtune fit --config ... --model FILE`.",
    "plugins/objectives": "An objective is a loss.",
    "plugins/pairs": "A pair policy chooses the pairs of a batch that a joint adapter scores.",
    "experiments/cola": "The tables of Cola: `base`, then one file of `data`, then a row.",
    "experiments/compare": "`vlmtune compare FILE` trains all rows of a table.",
    "experiments/corpora": "`base`, then one file each of `data`, `backbones` and `methods`.",
    "experiments/eqsim": "The tables of EqSim: `base`, then one file of `data`, then a row.",
    "experiments/fusion": "Fusion encoders, over `eqsim/base` and a file of `eqsim/data`.",
    "experiments/overlays": "An overlay changes any other experiment: put it last.",
    "experiments/quickstart": "`vlmtune quickstart` runs these; only `--size full` runs `suite`.",
    "sources": "`vlmtune download STEM`; [sources](../docs/sources.md) has sizes and licences.",
    "sweeps": "`wandb sweep --project vlmtune FILE`, then `wandb agent ID` on every machine.",
}


def summary(text: str) -> str:
    """The first sentence of a config's header, without commands; its first clause if it is long."""
    header = takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").strip() for line in header]
    prose = " ".join(line for line in lines if not re.match(r"(vlmtune|python|wandb) ", line))
    sentence = re.split(r"(?<! al)\.(?: |$)", prose)[0]
    return sentence if len(sentence) <= WIDTH else re.split(r"(?<!PUG)[:;] ", sentence)[0]


def page() -> str:
    """The text of configs/README.md."""
    sections: dict[str, list[Path]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        room, folder, *_ = path.relative_to(CONFIGS).parts
        name = room if room in ("sources", "sweeps") else f"{room}/{folder}"
        sections.setdefault(name, []).append(path)
    text = HEAD
    for name, paths in sections.items():
        text += f"\n## [{name}]({name})\n\n"
        if name in NOTES:
            text += f"{NOTES[name]}\n\n"
        text += "| | |\n| --- | --- |\n"
        for path in paths:
            stem = path.relative_to(CONFIGS / name).with_suffix("").as_posix()
            text += f"| {stem} | {summary(path.read_text(encoding='utf-8'))} |\n"
    return text


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
