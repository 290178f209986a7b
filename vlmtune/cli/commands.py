"""Declares every command with its options; imports nothing heavy, so `--help` answers at once.

In: nothing. Out: the parser of the command line, and the help of commands that Lightning parses.
Never: a command that runs.
"""

import argparse
import difflib
import itertools
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import override

from vlmtune.cli import probe_options
from vlmtune.cli.option_names import at_least
from vlmtune.config import ROOT, stems
from vlmtune.errors import UserError
from vlmtune.storage.remote.address import path_or_url

MORE: Any = {"nargs": "+", "action": "extend", "default": []}  # an option twice adds up
EPILOG = """\
Examples:
  vlmtune quickstart
  vlmtune build scenes --out data/scenes
  vlmtune download sugar_crepe aro
  vlmtune fit --config configs/experiments/quickstart/mm_adapter.yaml
  vlmtune evaluate --model ViT-B-32-quickgelu --pretrained openai --benchmarks aro
  vlmtune export runs/NAME/checkpoints/last.ckpt --out exports/NAME
  vlmtune score exports/NAME image.jpg --text "a red cube on a blue sphere"
  vlmtune index photos --model exports/NAME --out runs/index
  vlmtune search runs/index "a red cube on a blue sphere"

Paths that start with configs/ or checkpoints/ are looked up in the working directory, then among
the files that come with vlmtune. With --debug, any command shows the traceback of an error."""

QUICKSTART_SUMMARY = "run the whole pipeline once on a laptop CPU: render, train, evaluate, report"
EXPORT_SUMMARY = "export the trained weights of a checkpoint to a small, loadable folder"
TRAINING = {
    "fit": "train an adapter",
    "validate": "measure a checkpoint on the validation sets and benchmarks of its config",
    "test": "measure a checkpoint on the benchmarks of its config",
}
TRAINING_HELP = """\
usage: vlmtune {command} --config YAML [--ckpt-path CKPT] [--key value ...]

{summary}

  --config YAML          a config, for example one of configs/experiments; can be repeated, later
                         ones override earlier ones
  --data DATA            what to train on: a table (csv, tsv, jsonl, parquet), a folder of images
                         with captions, a saved dataset or hf://datasets/OWNER/NAME, which are built
                         into shards once; or shards or WebDataset tars, as 'data-{{0..9}}.tar'
  --table.KEY VALUE      an option of `vlmtune build table` for --data, such as --table.images DIR
  --ckpt-path CKPT       a checkpoint: to resume from (fit) or to measure
  --key value            override any key of the config, for example
                         --trainer.max_epochs 5 or --model.optimizer.init_args.lr=0.001;
                         select an item of a list by position, class or name:
                         --trainer.callbacks.0.every_n_steps 30
                         --trainer.callbacks.BenchmarkCallback.benchmarks.cola_multi.limit 100
  --model YAML           a method, by its name in configs/plugins/modules; give it after the configs
                         that set backbone and data
  --print-config         show the complete config and exit
  --model.adapter.help NAME
                         show the arguments of a plug-in (also model.backbone, model.pairs, ...)
  --all-help             show every key
  --debug                show the traceback of an error

A plug-in is given as a class path, a YAML, or its stem in configs/plugins, for example
--model.adapter lora --model.objectives "[info_nce, eqsim]". A backbone may also go by the name of a
model, for example --model.backbone ViT-B-32-quickgelu:openai, a hub id or a folder. In a config,
the path of a YAML is relative to that config."""

MODEL = """an export, a .ckpt, a hub id (of an export, of transformers or of open_clip), a
save_pretrained folder, an open_clip name or folder, a name with its weights such as
ViT-B-32-quickgelu:openai, a weights file with --architecture, a YAML, or its stem in
configs/plugins/models or backbones, or published:NAME for downloaded weights"""
SCORER = "as for `vlmtune evaluate`, or a YAML with backbone and adapter; it scores captions"
PRETRAINED = """for an open_clip name, its weights: a tag such as openai, a file, or random; for a
trained model, the folder or file of its base model, if the base model has moved"""
ARCHITECTURE = """the open_clip name of the architecture, if --model is a weights file (.pt, .pth,
.bin, .safetensors); for weights fine-tuned from OpenAI's the name ends in -quickgelu"""
PACKAGES = """packages besides vlmtune from which an export or a checkpoint may import classes"""
RUNS = """report.json or its folder, or another tool's items (.jsonl, .csv, .parquet); the first is
the baseline of the comparison; or a folder of a sweep or a comparison, for a table of its trials"""
BENCHMARKS = """stems of configs/plugins/benchmarks, sources of `vlmtune download --list`, YAMLs
with one benchmark or a list, or your own tables (csv, tsv, jsonl, parquet), whose options are
--table.images DIR for the folder of the images, --table.columns.caption NAME for the column of
captions, ...; paths in them are relative to the working directory"""
IMAGE_SIZE = """make the export read images at this size, for pictures with small objects; position
embeddings are interpolated, which is an error if they were trained"""
DEVICE = "cpu, cuda, ...; the accelerator by default"
BATCH_SIZE = "images or captions encoded at once (%(default)s); a CPU encodes 32 images"
TEXT_ONLY = """also measure three scores that see no image: an n-gram model of these captions
(shards, or a text file with one caption a line), the caption with the fewest words, and the model's
scores averaged over up to 64 images"""
ITEMS = """also write one row per item, as .jsonl, .csv or .parquet: benchmark, id, files, captions,
truth, scores, right or wrong; if FILE is OUT/items.jsonl (or .csv, .parquet), `vlmtune report`
shows which items were won and lost"""
SIZE = """tiny is 24 images and two training steps, to check that every stage runs; full is the
whole experiment, 25 minutes to an hour on two cores (default: %(default)s); use a separate folder
for each size"""
QUICKSTART = """\
It renders a world of scenes, trains two adapters on top of a small frozen CLIP (Cola's
recipe, and grounded words on a mixture of corpora), exports grounded words, and reports what
both gained and forgot. This takes 5 to 12 minutes on two idle cores.
Run it again to reuse existing files and resume training from the last checkpoints."""
BUILD = """\
All other arguments go to the builder and override its YAML, for example --train 100. `vlmtune
build table --help` lists the arguments for tables. The file or folder to read may come first:
vlmtune build table mine.csv --out data/mine-shards.
If the folder already contains the same build, it is reused; any other content is an error. A build
that was killed resumes from its last complete shard. vlmtune build merge parts/* --out
data/mine-shards combines all parts into one corpus."""
WORKERS = "processes that check images and write shards; the result is the same (%(default)s)"
LEFT_OUT = "fraction of images, or of rows of a table, that may be missing or damaged (%(default)s)"
DOWNLOAD = """\
Files go to where the plug-ins of configs/plugins look for them. Existing files are not downloaded
again, and an interrupted download resumes. Licences are recorded in licences.json beside the
data."""
DOWNLOADED = """a source in the list, weights such as negclip, or a benchmark or corpus, to download
only the files that it reads"""
DATA_ROOT = """folder for the data (data); set the environment variable VLMTUNE_DATA to the same
folder, so that all commands look there"""
FROM = """use files that you downloaded into this folder; they are checked and put in place"""
LEADERBOARD = """\
Run it again at any time, with more models or benchmarks, too: it measures only what is missing. The
numbers lie in OUT/measured, named by the model's weights and by the benchmark's options and items.
The page shows what each model gained and lost, costs, significance tests of each pair of models,
and published numbers.

Example:
  vlmtune leaderboard checkpoints/scenes-clip published:scenes/prompts runs/quickstart/export \\
    --benchmarks configs/experiments/quickstart/benchmarks.yaml --out runs/leaderboard"""
MODELS = """models as for `vlmtune evaluate --model`, or folders of runs, whose newest checkpoint is
used; all other models are compared with the first; --pretrained applies to plain open_clip names,
--architecture to weights files"""
N_GRAM = """also measure two scores that see no image: an n-gram model of these captions (shards, or
a text file with one caption a line), and the caption with the fewest words"""
COMPARE = """\
Run it again at any time: finished runs are skipped, and stopped runs resume.
Several processes can work on one comparison at the same time, for example one per GPU."""
GRID = """train every strategy with every combination of these values, for example
model.optimizer.init_args.lr=0.001,0.01 data.batch_size=20,40"""
EXPORT = """\
WiSE-FT interpolates between the pre-trained weights (alpha 0) and the trained weights (alpha 1).
Measure several alphas, choose one, then export it:
  vlmtune export last.ckpt --alphas 0,0.25,0.5,0.75,1 --benchmarks suite.yaml
  vlmtune export last.ckpt --alpha 0.5 --out exports/NAME
With --alphas, nothing is exported unless --alpha and --out are given."""
MERGED = """write a whole open_clip or transformers checkpoint instead of an export; only for
training that changed the model's own weights (full fine-tuning, last blocks, LoRA, matching heads)
or mapped text embeddings (text map)"""
FORMAT = """sentence-transformers or onnx: what --merged writes, instead of a checkpoint of the
model's own library; onnx also supports adapters with weights of their own, if they embed images and
texts; peft: what --out writes for LoRA, for PeftModel.from_pretrained"""
VECTORS = """turn grounded words into a dual encoder (one vector per image and per caption), with
this weight of the frozen score: 1 binds more, 2 forgets less"""
DIRECTIONS = """shorten the vectors of --vectors to the frozen embedding and K numbers, in the K
directions in which --images differ most"""
MTEB = "also write the result files of mteb, for Winoground, SugarCrepe and ARO"
INDEX = """\
Run it again with more files: only new and changed images are added.
An interrupted run resumes."""
RECALL = """number of images that embeddings shortlist for a joint adapter, which then scores them
(%(default)s)"""
NEIGHBOURS = """\
An interrupted run resumes. Then train with the folder that the command prints:
  --data.mined vlmtune.mining.neighbours.MinedNeighbours --data.mined.cache FOLDER"""


class _Parser(argparse.ArgumentParser):
    """Raises an error of one line instead of exiting."""

    passes_on = False  # whether a command or a builder reads the options that this parser lacks

    @override
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")

    @override
    def parse_known_args(self, args: Any = None, *others: Any) -> Any:  # type: ignore[override]
        # argparse asks for a required option before it names the one that misspells it.
        known = self._option_string_actions
        for word in itertools.takewhile("--".__ne__, args or ()):
            option = word.partition("=")[0]
            unknown = option.startswith("--") and option not in known and not self.passes_on
            pasted = option.startswith(("–", "—", "−"))  # as pages show two hyphens
            # Of several the nearest: argparse would list none.
            near = difflib.get_close_matches(option, known, 1) if unknown or pasted else []
            if unknown or near:
                advice = f": did you mean {near[0]!r}?" if near else ""
                self.error(f"expected a known option, got {option!r}{advice}")
        return super().parse_known_args(args, *others)

    @override
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse lists all choices, without the nearest of them.
        known = [str(choice) for choice in action.choices or ()]
        near = difflib.get_close_matches(str(value), known, 1)
        if near and str(value) not in known:
            what = "/".join(action.option_strings) or action.metavar or action.dest
            self.error(f"expected a known {what}, got {value!r}: did you mean {near[0]!r}?")
        super()._check_value(action, value)


def sentence(summary: str) -> str:
    """Returns a summary with a capital and a full stop."""
    return f"{summary[0].upper()}{summary[1:]}."


def _with_names(text: str, kind: str, title: str) -> str:
    listed = ", ".join(stems(kind))
    names = textwrap.fill(listed, 98, initial_indent="  ", subsequent_indent="  ")
    return f"{text}\n\n{title}:\n{names}".strip()


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; commands of `TRAINING` only have a line in its help."""
    plain: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    about = "Fine-tune vision-language models to understand compositions, and measure them."
    parser = _Parser(prog="vlmtune", description=about, epilog=EPILOG, **plain)
    parser.passes_on = True
    parser.add_argument("--version", action="version", version=f"vlmtune {version('vlmtune')}")
    configs = str(ROOT / "configs")
    shipped = "show the folder of the configs that come with vlmtune and exit"
    parser.add_argument("--configs", action="version", version=configs, help=shipped)
    subcommands: Any = {"dest": "command", "required": True, "metavar": "COMMAND"}
    commands = parser.add_subparsers(**subcommands, parser_class=_Parser)

    # Declares a command; returns what declares its arguments, in the order of the help.
    def command(name: str, summary: str, epilog: str = "") -> Callable[..., Any]:
        texts = {"help": summary, "description": sentence(summary), "epilog": epilog}
        return commands.add_parser(name, **texts, **plain).add_argument

    # Options that several commands share.
    many: Any = {"nargs": "+", "action": "extend", "required": True}

    add = command("quickstart", QUICKSTART_SUMMARY, QUICKSTART)
    add("--out", type=Path, default=Path("runs/quickstart"), help="folder to write (%(default)s)")
    add("--seed", type=int, default=0, help="seed of training (%(default)s)")
    add("--size", choices=("tiny", "small", "full"), default="small", help=SIZE)

    for name, summary in TRAINING.items():
        commands.add_parser(name, help=summary, add_help=False)  # run before this parser

    names = _with_names(BUILD, "builders", "Corpora")
    add = command("build", "convert a corpus into shards", names)
    commands.choices["build"].passes_on = True
    add("corpus", help="a stem of configs/plugins/builders, a YAML or a class path")
    add("--config", metavar="YAML", help="arguments that override the corpus's YAML")
    add("--out", required=True, type=Path, help="folder to write")
    add("--workers", type=at_least(1), default=1, metavar="N", help=WORKERS)
    add("--part", metavar="I/N", help="only write part I of N, for `vlmtune build merge`")
    add("--max-left-out", type=float, default=0.02, metavar="FRACTION", help=LEFT_OUT)

    add = command("download", "download data sets and weights", DOWNLOAD)
    add("names", nargs="*", metavar="NAME", help=DOWNLOADED)
    add("--weights", **MORE, metavar="NAME", help="published weights: negclip, ...")
    add("--list", action="store_true", help="list all sources, and what you already have")
    add("--data-root", type=Path, metavar="DIR", help=DATA_ROOT)
    add("--whole", action="store_true", help="download whole archives, not single images")
    add("--from", dest="given", type=Path, metavar="FOLDER", help=FROM)
    add("--accept", **MORE, metavar="NAME", help="accept the terms of these sources")
    add("--dry-run", action="store_true", help="show what would be downloaded, and exit")

    names = _with_names("", "benchmarks", "Benchmarks")
    add = command("evaluate", "measure a model on benchmarks", names)
    add("--model", required=True, help=MODEL)
    _model(add)
    add("--benchmarks", **many, metavar="B", help=BENCHMARKS)
    add("--download", action="store_true", help="first download the files that are missing")
    add("--out", type=Path, help="folder of the report; by default a new one in runs/evaluate")
    add("--name", help="name of the run in reports; by default the model's name")
    add("--items", type=Path, metavar="FILE", help=ITEMS)
    add("--text-only", type=path_or_url, metavar="CAPTIONS", help=TEXT_ONLY)
    _store(add)

    add = command("leaderboard", "rank many models on many benchmarks on one page", LEADERBOARD)
    add("models", nargs="+", metavar="MODEL", help=MODELS)
    _model(add)
    add("--benchmarks", **many, metavar="B", help=BENCHMARKS)
    add("--download", action="store_true", help="first download the files that are missing")
    add("--out", required=True, type=Path, help="folder of the page and of the measured numbers")
    add("--text-only", type=path_or_url, metavar="CAPTIONS", help=N_GRAM)
    _store(add, "; OUT/features by default")

    add = command("compare", "train many strategies and compare them in one table", COMPARE)
    add("experiment", type=Path, help="a YAML, for example configs/experiments/compare/cola.yaml")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds of each strategy (0)")
    add("--only", **MORE, metavar="STRATEGY", help="only train these rows")
    add("--grid", **MORE, metavar="KEY=VALUE,...", help=GRID)
    add("--steps", type=int, help="shorten every run to this many steps")
    add("--out", type=Path, help="folder of the runs; by default the one in the YAML")

    add = command("export", EXPORT_SUMMARY, EXPORT)
    add("checkpoint", nargs="?", type=Path, help="a .ckpt, an export or published:NAME")
    add("--model", help="with --merged, --vectors, --image-size: as for `vlmtune evaluate`")
    _model(add)
    add("--out", type=Path, help="folder to write")
    add("--merged", type=Path, metavar="FOLDER", help=MERGED)
    add("--format", choices=("sentence-transformers", "onnx", "peft"), help=FORMAT)
    add("--report", type=Path, help="report.json whose scores go into the model card")
    add("--overwrite", action="store_true", help="replace an existing export in --out")
    add("--licence", metavar="ID", help="licence of the trained weights, e.g. apache-2.0")
    add("--push-to-hub", metavar="REPO", help="also upload --out; a new repository is private")
    add("--public", action="store_true", help="make a new --push-to-hub repository public")
    add("--image-size", type=at_least(1), metavar="PIXELS", help=IMAGE_SIZE)
    add("--vectors", type=float, metavar="WEIGHT", help=VECTORS)
    add("--directions", type=at_least(1), metavar="K", help=DIRECTIONS)
    add("--images", type=Path, metavar="FOLDER", help="images for --directions, at least K")
    add("--alpha", type=float, help="alpha of the exported weights (1)")
    add("--alphas", type=numbers, metavar="A,A,...", help="alphas to measure on --benchmarks")
    add("--benchmarks", nargs="+", action="extend", metavar="B", help="as for `vlmtune evaluate`")
    _store(add)

    add = command("index", "encode images into an index for `vlmtune search`", INDEX)
    add("images", nargs="+", type=Path, metavar="image", help="image files, or folders of them")
    add("--model", required=True, help=MODEL)
    _model(add)
    add("--out", required=True, type=Path, help="folder of the index")

    add = command("neighbours", "mine look-alike images as hard negatives for training", NEIGHBOURS)
    add("--model", required=True, help=SCORER)
    _model(add)
    add("--shards", **many, type=path_or_url, metavar="DIR", help="training sets, or their URLs")
    add("--out", required=True, type=Path, help="folder for the caches")
    add("--neighbours", type=at_least(1), default=128, help="look-alikes per image (%(default)s)")
    add("--images-only", action="store_true", help="do not score captions")
    add("--features", metavar="MODEL", help="model whose features are compared; --model by default")
    _store(add, "; --out by default")

    add = probe_options.declare(command, MODEL, _model)
    _store(add, "; OUT/features by default")

    add = command("report", "put the reports of several runs side by side")
    add("runs", nargs="+", type=Path, metavar="RUN", help=RUNS)
    add("--out", required=True, type=Path, help="folder to write")
    add("--csv", type=Path, metavar="FILE", help="also write every number as CSV")
    add("--latex", type=Path, metavar="FILE", help="also write the primary numbers as LaTeX")
    add("--mteb", type=Path, metavar="FOLDER", help=MTEB)
    add("--metric", metavar="BENCHMARK[/METRIC]", help="for a sweep: sort trials by this metric")
    add("--export", type=Path, metavar="FOLDER", help="for a sweep: export the best trial")
    add("--packages", **MORE, metavar="NAME", help=PACKAGES)

    add = command("score", "score images against captions")
    add("model", help="as for `vlmtune evaluate --model`")
    add("images", nargs="+", metavar="image", help="image files")
    add("--text", required=True, action="append", help="a caption; can be repeated")
    _model(add)

    add = command("search", "find the images in an index that match captions best")
    add("index", type=Path, help="folder that `vlmtune index` wrote")
    add("queries", nargs="*", metavar="query", help="a caption")
    add("--like", **MORE, type=Path, metavar="IMAGE", help="find images like these, too")
    add("--html", type=Path, metavar="FILE", help="also write a page with the pictures")
    add("--top", type=at_least(1), default=10, help="images shown per caption (%(default)s)")
    add("--recall", type=at_least(1), default=100, help=RECALL)
    add("--model", help="where the model is now, if it has moved since indexing")
    _model(add)

    add = command("shuffles", "shuffle the words of captions, for ARO's order benchmarks")
    add("--annotations", required=True, type=Path, help="for example coco_karpathy_test.json")
    add("--out", required=True, type=Path, help="file to write")
    add("--seed", type=int, default=0, help="seed of the shuffles (%(default)s)")
    add("--spacy", metavar="MODEL", help="tag with spaCy, e.g. en_core_web_sm")
    return parser


def _model(add: Callable[..., Any]) -> None:
    add("--pretrained", help=PRETRAINED)
    add("--architecture", metavar="NAME", help=ARCHITECTURE)
    add("--packages", **MORE, metavar="NAME", help=PACKAGES)
    add("--device", help=DEVICE)
    add("--batch-size", type=at_least(1), default=256, help=BATCH_SIZE)


def _store(add: Callable[..., Any], default: str = "") -> None:
    add("--store", type=Path, metavar="DIR", help=f"folder for encoded features{default}")


def numbers(text: str) -> list[float]:
    """Returns the numbers of a text that separates them by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas, got {text!r}") from None
