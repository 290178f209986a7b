"""Declares every command with its options; imports nothing heavy, so `--help` answers at once.

In: nothing. Out: the parser of the command line, and the help of commands that Lightning parses.
Never: a command that runs.
"""

import argparse
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from vlmtune.cli import probe_options
from vlmtune.config import ROOT, stems
from vlmtune.errors import UserError
from vlmtune.storage.remote.address import path_or_url

EPILOG = """\
Examples:
  vlmtune quickstart
  vlmtune build scenes --out data/scenes
  vlmtune fit --config configs/experiments/quickstart/mm_adapter.yaml
  vlmtune evaluate --model ViT-B-32 --pretrained openai --benchmarks cola_multi --out reports/clip
  vlmtune export runs/NAME/checkpoints/last.ckpt --out exports/NAME
  vlmtune score exports/NAME image.jpg --text "a red cube on a blue sphere"
  vlmtune index photos --model exports/NAME --out runs/index
  vlmtune search runs/index "a red cube on a blue sphere"

Paths that start with configs/ or checkpoints/ are looked for in the working directory, then among
the files that come with vlmtune. --debug, anywhere, shows the traceback of an error."""

TRAINING = {
    "fit": "train an adapter",
    "validate": "measure a checkpoint on the validation sets",
    "test": "measure a checkpoint on the benchmarks of its config",
}
TRAINING_HELP = """\
usage: vlmtune {command} --config YAML [--ckpt_path CKPT] [--key value ...]

{summary}

  --config YAML          a config, for example one of configs/experiments; if given more than once,
                         later ones override earlier ones
  --ckpt_path CKPT       a checkpoint: to resume from (fit) or to measure
  --key value            override any key of the config, for example
                         --trainer.max_epochs 5 or --model.optimizer.init_args.lr=0.001;
                         an item of a list by its position, class or name:
                         --trainer.callbacks.0.every_n_steps 30
                         --trainer.callbacks.BenchmarkCallback.benchmarks.cola_multi.limit 100
  --model YAML           a method by its name, one of configs/plugins/modules, after configs that
                         set backbone and data
  --print_config         show the complete config and exit
  --model.adapter.help CLASS_PATH
                         show the arguments of a plug-in (also model.backbone, model.pairs, ...)
  --all-help             show every key
  --debug                show the traceback of an error

Name a plug-in by its class path, by a YAML, or by its stem in configs/plugins, for example
--model.adapter lora --model.objectives "[info_nce, eqsim]". The path of a YAML in a config is
relative to that config."""

MODEL = """an export, a .ckpt, a hub id (of an export, of transformers or of open_clip), a folder of
save_pretrained, an open_clip name or folder, a weights file with --architecture, or a YAML of
configs/plugins/models or backbones, also by its stem"""
SCORER = "as for `vlmtune evaluate`, or a YAML with backbone and adapter; it scores captions"
PRETRAINED = "weights of an open_clip name: a tag such as openai, a file, or random"
ARCHITECTURE = """the open_clip name of the weights in the file --model (.pt, .pth, .bin,
.safetensors); for weights fine-tuned from OpenAI's it ends in -quickgelu"""
PACKAGES = """packages beside vlmtune whose classes an export or a checkpoint may name; no other
is imported"""
RUNS = """report.json or its folder, or items of another tool (.jsonl, .csv, .parquet); the others
are compared with the first"""
BENCHMARKS = """stems of configs/plugins/benchmarks, YAMLs with one benchmark or a list, or your own
tables (csv, tsv, jsonl, parquet); the files they name are relative to the working directory"""
DEVICE = "cpu, cuda, ...; the accelerator by default"
TEXT_ONLY = """also measure two scores that see no image: an n-gram model of these captions
(shards, or a text file with one caption a line), and the mean of the model's scores over all
images"""
ITEMS = """also write a row for each item, as .jsonl, .csv or .parquet: benchmark, id, files,
captions, truth, scores, right or wrong; as OUT/items.jsonl (or .csv, .parquet), `vlmtune report`
shows which items were won and lost"""
SIZE = """tiny is 24 images and two training steps, to see that every step runs; full is the whole
experiment, an hour (%(default)s); each size needs a separate folder"""
QUICKSTART = """\
It renders a world of scenes, trains two adapters on it over a small frozen CLIP (Cola's
recipe, and grounded words on a mixture of corpora), exports the second, and reports what
they gained and forgot: about six minutes on two cores.
Run again, it uses existing files and continues trainings from their last checkpoints."""
BUILD = """\
All further arguments go to the builder and override its YAML, for example --train 100. `vlmtune
build table --help` lists those of tables. The first may be the file or folder to read: vlmtune
build table mine.csv --out data/mine-shards.
If the folder already holds the same build, it is kept; any other content is refused. A build that
was killed goes on from its last complete shard. vlmtune build merge parts/* --out data/mine-shards
makes one corpus of all parts."""
WORKERS = "processes that check images and write shards; the result is the same (%(default)s)"
LEFT_OUT = "share of images, or of rows of a table, that may be missing or damaged (%(default)s)"
COMPARE = """\
Call it again at any time: finished runs are not repeated, stopped ones resume.
Several calls at the same time share the runs, for example one a GPU."""
EXPORT = """\
WiSE-FT mixes the pre-trained weights (alpha 0) with the trained ones (alpha 1). Measure
some alphas to choose one, then export it:
  vlmtune export last.ckpt --alphas 0,0.25,0.5,0.75,1 --benchmarks suite.yaml
  vlmtune export last.ckpt --alpha 0.5 --out exports/NAME
With --alphas, nothing is exported unless --alpha and --out are given too."""
MERGED = """write a whole checkpoint of open_clip or transformers instead; only after training that
changes weights of the model alone: full fine-tuning, last blocks, LoRA"""
FORMAT = """what --merged writes, instead of a checkpoint of the model's own library; onnx also
takes adapters with weights of their own, if they embed images and texts"""
INDEX = """\
An index grows: call it again with more files, and those that are new or have changed are added.
An interrupted run continues."""
RECALL = """images that embeddings find first, for an adapter that reads image and text together
to score (%(default)s)"""
NEIGHBOURS = """\
An interrupted run continues. Then train with the folder it prints:
  --data.mined vlmtune.mining.neighbours.MinedNeighbours --data.mined.cache FOLDER"""


class _Parser(argparse.ArgumentParser):
    """Raises an error of one line instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")


def sentence(summary: str) -> str:
    """Returns a summary with a capital and a full stop."""
    return f"{summary[0].upper()}{summary[1:]}."


def _with_names(text: str, kind: str, title: str) -> str:
    names = textwrap.fill(", ".join(stems(kind)), 98, initial_indent="  ", subsequent_indent="  ")
    return f"{text}\n\n{title}:\n{names}".strip()


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; those of `TRAINING` only have a line in its help."""
    plain: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    about = "Fine-tunes vision-language models so that they understand compositions."
    parser = _Parser(prog="vlmtune", description=about, epilog=EPILOG, **plain)
    parser.add_argument("--version", action="version", version=f"vlmtune {version('vlmtune')}")
    shipped = "show the folder of the configs that come with vlmtune and exit"
    parser.add_argument("--configs", action="version", version=str(ROOT / "configs"), help=shipped)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, epilog: str = "") -> Callable[..., Any]:
        texts = {"help": summary, "description": sentence(summary), "epilog": epilog}
        return commands.add_parser(name, **texts, **plain).add_argument

    path: Any = {"type": Path}
    many: Any = {"nargs": "+", "required": True}

    add = command("quickstart", "do everything once, on a laptop CPU", QUICKSTART)
    add("--out", **path, default=Path("runs/quickstart"), help="folder to write (%(default)s)")
    add("--seed", type=int, default=0, help="seed of the trainings (%(default)s)")
    add("--size", choices=("tiny", "small", "full"), default="small", help=SIZE)

    for name, summary in TRAINING.items():
        commands.add_parser(name, help=summary, add_help=False)  # run before this parser

    add = command("build", "write a corpus into shards", _with_names(BUILD, "builders", "Corpora"))
    add("corpus", help="a stem of configs/plugins/builders, a YAML or a class path")
    add("--config", metavar="YAML", help="arguments that override those of the corpus")
    add("--out", required=True, **path, help="folder to write")
    add("--workers", type=int, default=1, metavar="N", help=WORKERS)
    add("--part", metavar="I/N", help="write part I of N alone, for `vlmtune build merge`")
    add("--max_left_out", type=float, default=0.02, metavar="SHARE", help=LEFT_OUT)

    names = _with_names("", "benchmarks", "Benchmarks")
    add = command("evaluate", "measure a model on benchmarks", names)
    add("--model", required=True, help=MODEL)
    _model(add)
    add("--benchmarks", **many, metavar="B", help=BENCHMARKS)
    add("--out", required=True, **path, help="folder of the report")
    add("--name", help="name of the run in reports; the model's by default")
    add("--items", **path, metavar="FILE", help=ITEMS)
    add("--text-only", type=path_or_url, metavar="CAPTIONS", help=TEXT_ONLY)
    _computing(add)

    add = command("compare", "train many strategies and put them into one table", COMPARE)
    add("experiment", **path, help="a YAML, for example configs/experiments/compare/cola.yaml")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds of each strategy (0)")
    add("--only", nargs="+", default=[], metavar="STRATEGY", help="train these rows alone")
    add("--steps", type=int, help="shorten the trainings to so many steps")
    add("--out", **path, help="folder of the runs; the YAML's by default")

    add = command("export", "turn a checkpoint into a folder that loads in three lines", EXPORT)
    add("checkpoint", nargs="?", **path, help="a .ckpt that `vlmtune fit` wrote")
    add("--model", help="instead of it, for --merged: a model as for `vlmtune evaluate`")
    _model(add)
    add("--out", **path, help="folder to write")
    add("--merged", **path, metavar="FOLDER", help=MERGED)
    add("--format", choices=("sentence-transformers", "onnx"), help=FORMAT)
    add("--report", **path, help="report.json with its scores, for the card")
    add("--overwrite", action="store_true", help="replace an export in --out")
    add("--licence", metavar="ID", help="licence of the trained weights, e.g. apache-2.0")
    add("--push-to-hub", metavar="REPO", help="also upload --out to the hub; private if new")
    add("--public", action="store_true", help="make a new repository of --push-to-hub public")
    add("--alpha", type=float, help="alpha of the exported weights; 1 by default")
    add("--alphas", type=_numbers, metavar="A,A,...", help="alphas to measure")
    add("--benchmarks", nargs="+", metavar="B", help="as for `vlmtune evaluate`")
    _computing(add)

    add = command("index", "encode many images, to search them by captions", INDEX)
    add("images", nargs="+", **path, metavar="image", help="image files, or folders of them")
    add("--model", required=True, help=MODEL)
    _model(add)
    add("--out", required=True, **path, help="folder of the index")
    _device(add)

    add = command("neighbours", "mine images that are hard to tell apart", NEIGHBOURS)
    add("--model", required=True, help=SCORER)
    _model(add)
    add(
        "--shards", **many, type=path_or_url, metavar="DIR", help="the training sets, or their URLs"
    )
    add("--out", required=True, **path, help="folder of caches")
    add("--neighbours", type=int, default=128, help="images kept for each image (%(default)s)")
    add("--images-only", action="store_true", help="score no captions")
    add("--features", metavar="MODEL", help="model of the compared features; --model by default")
    _computing(add, "; --out by default")

    add = probe_options.declare(command, MODEL, PRETRAINED, ARCHITECTURE)
    _computing(add, "; OUT/features by default")

    add = command("report", "compare the reports of several runs")
    add("runs", nargs="+", **path, metavar="RUN", help=RUNS)
    add("--out", required=True, **path, help="folder to write")
    add("--csv", **path, metavar="FILE", help="also write every number as CSV")
    add("--latex", **path, metavar="FILE", help="also write the primary numbers for a paper")

    add = command("score", "score images against captions")
    add("model", help="as for `vlmtune evaluate --model`")
    add("images", nargs="+", **path, metavar="image", help="image files")
    add("--text", required=True, action="append", help="a caption; can be repeated")
    _model(add)

    add = command("search", "find the images of an index that fit captions best")
    add("index", **path, help="folder that `vlmtune index` wrote")
    add("queries", nargs="*", metavar="query", help="a caption")
    add("--page", action="store_true", help="serve a search page on this machine instead")
    add("--port", type=int, default=0, help="port of the page; a free one by default")
    add("--top", type=int, default=10, help="images shown for each caption (%(default)s)")
    add("--recall", type=int, default=100, help=RECALL)
    add("--model", help="the model, if it is no longer where it was")
    _model(add)
    add("--device", help=DEVICE)

    add = command("shuffles", "shuffle the words of captions, for ARO's order benchmarks")
    add("--annotations", required=True, **path, help="for example coco_karpathy_test.json")
    add("--out", required=True, **path, help="file to write")
    add("--seed", type=int, default=0, help="seed of the shuffles (%(default)s)")
    add("--spacy", metavar="MODEL", help="tag with spaCy, e.g. en_core_web_sm")
    return parser


def _model(add: Callable[..., Any]) -> None:
    add("--pretrained", help=PRETRAINED)
    add("--architecture", metavar="NAME", help=ARCHITECTURE)
    add("--packages", nargs="+", default=(), metavar="NAME", help=PACKAGES)


def _computing(add: Callable[..., Any], default: str = "") -> None:
    add("--store", type=Path, metavar="DIR", help=f"folder that keeps encoded features{default}")
    _device(add)


def _device(add: Callable[..., Any]) -> None:
    add("--device", help=DEVICE)
    add("--batch-size", type=int, default=256, help="images encoded at a time (%(default)s)")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers with commas between them, got {text!r}"
        ) from None
