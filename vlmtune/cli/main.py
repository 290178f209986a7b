"""The command line. It imports nothing heavy before a command runs, so `--help` answers at once.

In: the words of a command line. Out: an exit status. It never prints a traceback without `--debug`.
"""

import argparse
import contextlib
import importlib
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from vlmtune.cli.explain import explain, is_expected, warning_line
from vlmtune.config import ROOT, find_path
from vlmtune.errors import UserError

EPILOG = """\
Examples:
  vlmtune quickstart
  vlmtune build scenes --out data/scenes
  vlmtune fit --config configs/experiments/quickstart/mm_adapter.yaml
  vlmtune evaluate --model ViT-B-32 --pretrained openai --benchmarks cola_multi --out reports/clip
  vlmtune export runs/NAME/last.ckpt --out exports/NAME
  vlmtune score exports/NAME image.jpg --text "a red cube on a blue sphere"

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
                         --trainer.max_epochs 5 or --model.optimizer.init_args.lr=0.001
  --print_config         show the complete config and exit
  --model.adapter.help CLASS_PATH
                         show the arguments of a plug-in (also model.backbone, model.pairs, ...)
  --all-help             show every key
  --debug                show the traceback of an error

Name a plug-in by its class path or by a YAML. The path of a YAML in a config is relative to that
config."""


class _Parser(argparse.ArgumentParser):
    """Raises an error of one line instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, 2 for an error of the user, 130 for Ctrl-C.

    Args:
        argv: The arguments without the program's name; those of the process by default.

    Example:
        >>> main(["report", "nowhere", "--out", "nowhere"])
        2
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        with plain_log():
            return run_command([argument for argument in arguments if argument != "--debug"])
    except KeyboardInterrupt:
        print("vlmtune: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"vlmtune: error: {explain(error)}", file=sys.stderr)
        return 2 if is_expected(error) else 1


def entry() -> None:
    """The `vlmtune` program."""
    sys.exit(main())


def run_command(arguments: list[str]) -> int:
    """Runs a command; unlike `main`, it lets errors through."""
    arguments = [_located(word) for word in arguments]
    if arguments and arguments[0] in TRAINING:
        command, rest = arguments[0], arguments[1:]
        if not rest or {"-h", "--help"} & set(rest):
            print(TRAINING_HELP.format(command=command, summary=_sentence(TRAINING[command])))
            return 0 if rest else 2
        rest = ["--help" if argument == "--all-help" else argument for argument in rest]
        importlib.import_module("vlmtune.cli.fit").run(command, rest)
        return 0
    options, unknown = _parser().parse_known_args(arguments)
    if unknown and options.command != "build":
        raise UserError(
            f"expected a known argument, got {unknown[0]!r}: see `vlmtune {options.command} --help`"
        )
    options.overrides = unknown
    importlib.import_module(f"vlmtune.cli.{options.command}").run(options)
    return 0


def _located(word: str) -> str:
    """Returns a word of the command line; a config that comes with vlmtune gets its full path."""
    option, equals, value = word.rpartition("=")
    path = find_path(value) if value.startswith("configs/") and not Path(value).exists() else None
    return f"{option}{equals}{path or value}"


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vlmtune",
        description="Fine-tunes vision-language models so that they understand compositions.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vlmtune {version('vlmtune')}")
    parser.add_argument(
        "--configs",
        action="version",
        version=str(ROOT / "configs"),
        help="show the folder of the configs that come with vlmtune and exit",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _quickstart(commands)
    for command, summary in TRAINING.items():
        commands.add_parser(command, help=summary, add_help=False)  # run before this parser
    for add in (_build, _evaluate, _export, _neighbours, _report, _score, _shuffles):
        add(commands)
    return parser


def _add(commands: Any, name: str, summary: str, epilog: str = "") -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=_sentence(summary),
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _quickstart(commands: Any) -> None:
    epilog = (
        "It renders a world of scenes, trains a linear probe and an MM-Adapter on it over a small\n"
        "frozen CLIP, exports the adapter and writes the reports: a few minutes on two cores.\n"
        "Run again, it uses what is there and continues trainings from their last checkpoints."
    )
    parser = _add(commands, "quickstart", "do everything once, on a laptop CPU", epilog)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/quickstart"), help="folder to write (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the trainings (%(default)s)")
    parser.add_argument(
        "--size",
        choices=("full", "tiny"),
        default="full",
        help="tiny is 24 training images and two training steps, to see that every step runs; its "
        "numbers mean nothing, and it needs a folder of its own",
    )


def _build(commands: Any) -> None:
    epilog = (
        "All further arguments go to the builder and override its YAML, for example --train 100.\n"
        "If the folder already holds the same build, it is kept; any other content is refused."
    )
    parser = _add(commands, "build", "write a corpus into shards", epilog)
    parser.add_argument("corpus", help="a stem of configs/plugins/builders, a YAML or a class path")
    parser.add_argument("--config", metavar="YAML", help="arguments that override the corpus's own")
    parser.add_argument("--out", required=True, type=Path, help="folder to write")


def _evaluate(commands: Any) -> None:
    parser = _add(commands, "evaluate", "measure a model on benchmarks")
    parser.add_argument(
        "--model",
        required=True,
        help="an export, a .ckpt, a hub id, an open_clip name or folder, or the YAML of a backbone",
    )
    _pretrained(parser)
    parser.add_argument(
        "--benchmarks",
        required=True,
        nargs="+",
        metavar="B",
        help="stems of configs/plugins/benchmarks, or YAMLs with one benchmark or a list; the "
        "files they name are relative to the working directory",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder of the report")
    parser.add_argument("--name", help="name of the run in reports; the model's by default")
    parser.add_argument(
        "--text-only",
        type=Path,
        metavar="CAPTIONS",
        help="also measure two scores that see no image: an n-gram model of these captions "
        "(shards, or a text file with one caption a line), and the mean of the model's scores "
        "over all images",
    )
    _computing(parser)


def _export(commands: Any) -> None:
    epilog = (
        "WiSE-FT mixes the pre-trained weights (alpha 0) with the trained ones (alpha 1). Measure\n"
        "some alphas to choose one, then export it:\n"
        "  vlmtune export last.ckpt --alphas 0,0.25,0.5,0.75,1 --benchmarks suite.yaml\n"
        "  vlmtune export last.ckpt --alpha 0.5 --out exports/NAME\n"
        "With --alphas, nothing is exported unless --alpha and --out are given too."
    )
    summary = "turn a checkpoint into a folder that loads in three lines"
    parser = _add(commands, "export", summary, epilog)
    parser.add_argument("checkpoint", type=Path, help="a .ckpt that `vlmtune fit` wrote")
    parser.add_argument("--out", type=Path, help="folder to write")
    parser.add_argument("--report", type=Path, help="report.json with its scores, for the card")
    parser.add_argument("--overwrite", action="store_true", help="replace an export in --out")
    parser.add_argument("--alpha", type=float, help="alpha of the exported weights; 1 by default")
    parser.add_argument("--alphas", type=_numbers, metavar="A,A,...", help="alphas to measure")
    parser.add_argument("--benchmarks", nargs="+", metavar="B", help="as for `vlmtune evaluate`")
    _computing(parser)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers with commas between them, got {text!r}"
        ) from None


def _neighbours(commands: Any) -> None:
    epilog = (
        "Interrupted, it continues where it stopped. Then train with the folder it prints:\n"
        "  --data.mined vlmtune.mining.neighbours.MinedNeighbours --data.mined.cache FOLDER"
    )
    parser = _add(commands, "neighbours", "mine images that are hard to tell apart", epilog)
    parser.add_argument(
        "--model",
        required=True,
        help="as for `vlmtune evaluate`, or a YAML with backbone and adapter; it scores captions",
    )
    _pretrained(parser)
    parser.add_argument(
        "--shards", required=True, nargs="+", type=Path, metavar="DIR", help="the training sets"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder of caches")
    parser.add_argument(
        "--neighbours", type=int, default=128, help="images kept for each image (%(default)s)"
    )
    parser.add_argument("--images-only", action="store_true", help="score no captions")
    parser.add_argument(
        "--features",
        metavar="MODEL",
        help="model whose image features are compared; --model by default",
    )
    _computing(parser, "; --out by default")


def _report(commands: Any) -> None:
    parser = _add(commands, "report", "compare the reports of several runs")
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="report.json or its folder; the others are compared with the first",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write every number as CSV")
    parser.add_argument(
        "--latex", type=Path, metavar="FILE", help="also write the primary numbers for a paper"
    )


def _score(commands: Any) -> None:
    parser = _add(commands, "score", "score images against captions")
    parser.add_argument("model", help="as for `vlmtune evaluate --model`")
    parser.add_argument("images", nargs="+", type=Path, metavar="image", help="image files")
    parser.add_argument("--text", required=True, action="append", help="a caption; can be repeated")
    _pretrained(parser)


def _shuffles(commands: Any) -> None:
    parser = _add(commands, "shuffles", "shuffle the words of captions, for ARO's order benchmarks")
    parser.add_argument(
        "--annotations", required=True, type=Path, help="for example coco_karpathy_test.json"
    )
    parser.add_argument("--out", required=True, type=Path, help="file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the shuffles (%(default)s)")
    parser.add_argument("--spacy", metavar="MODEL", help="tag with spaCy, e.g. en_core_web_sm")


def _pretrained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pretrained", help="weights of an open_clip name, e.g. openai")


def _computing(parser: argparse.ArgumentParser, store: str = "") -> None:
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help=f"folder that keeps encoded features{store}"
    )
    parser.add_argument("--device", help="cpu, cuda, ...; the accelerator by default")
    parser.add_argument(
        "--batch-size", type=int, default=256, help="images encoded at a time (%(default)s)"
    )


@contextlib.contextmanager
def plain_log() -> Iterator[None]:
    """Shows the log and warnings as plain lines on stderr while a command runs."""
    log, handler = logging.getLogger("vlmtune"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    level, form = log.level, warnings.formatwarning
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    warnings.formatwarning = warning_line
    try:
        with warnings.catch_warnings():
            yield
    finally:
        warnings.formatwarning = form
        log.setLevel(level)
        log.removeHandler(handler)
