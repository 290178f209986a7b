"""`vlmtune fit`, `validate` and `test`: Lightning's command line over our module and data.

In: configs and arguments. Out: a run's folder. Never: a step; Lightning and `training` take them.
"""

import argparse
import enum
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import yaml
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from torch.nn import ModuleList
from typing_extensions import override

from vlmtune.cli.explain import configuration_error, explain, is_expected, warning_line
from vlmtune.cli.fit_checkpoints import checkpoint_lines, exported_checkpoints
from vlmtune.cli.fit_checks import (
    check_numbers,
    check_optimizer,
    check_shards,
    names_module,
    replaced,
)
from vlmtune.cli.fit_failures import lightning_runs
from vlmtune.cli.nulls import with_nulls
from vlmtune.cli.option_names import given_options
from vlmtune.cli.overrides import changed_lists, loses_name, rewritten
from vlmtune.cli.run_folder import (
    CHECKPOINTS,
    AtomicCheckpoints,
    LastCheckpoint,
    alone_in,
    default_logger,
    trial_folder,
)
from vlmtune.cli.run_progress import RunProgress
from vlmtune.cli.saved_config import SaveConfig
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.errors import counted
from vlmtune.model import check_checkpoint
from vlmtune.report.screen import show
from vlmtune.report.table import count
from vlmtune.storage.files import remove_leftovers
from vlmtune.training.benchmark_callback import BenchmarkCallback
from vlmtune.training.failures import failure_of_others, is_lost, publish_failure
from vlmtune.training.module import AdaptationModule
from vlmtune.training.monitors import check_monitored
from vlmtune.training.run_log import Origin
from vlmtune.training.run_monitor import RunMonitor
from vlmtune.training.signals import Stopped
from vlmtune.training.wandb_runs import WandbRuns, continue_runs, name_runs, wandb_loggers

# Lightning has enums as defaults, such as the interval of `Timer`, and configs are saved as YAML.
yaml.SafeDumper.add_multi_representer(
    enum.Enum, lambda dumper, member: dumper.represent_data(member.value)
)

# Warnings of Lightning and torch that a user cannot act on, or has chosen.
NOISE = (
    ".*does not have many workers.*",
    ".*worker processes in total.*",
    ".*Checkpoint directory.*exists and is not empty.*",
    ".*tensorboardX.*",
    ".*LeafSpec.*",
    ".*callbacks used to create the checkpoint.*",
    ".*number of training batches.*smaller than the logging interval.*",
    ".*GPU available but not used.*",
    ".*The dirpath has changed.*",
    ".*in eval mode at the start of training.*",
    ".*isn't a registered model.*",
)

KEYWORDS = ("last", "best", "hpc")  # checkpoints that Lightning finds itself


def run(command: str, arguments: list[str]) -> None:
    """Runs `fit`, `validate` or `test`; a wrong key, file or value fails before the first step."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning calls what jsonargparse deprecates.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    warnings.formatwarning = warning_line  # importing Lightning sets another
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)
    try:
        from vlmtune.cli.fit_data import with_shards  # a plain run needs none of its readers

        words = with_shards(arguments)
        _warn(replaced(words))
        VlmtuneCLI(command, words)
    except Stopped as stop:
        if stop.path is None or getattr(rank_zero_only, "rank", 0) == 0:
            print(stop_line(stop, command, arguments), file=sys.stderr)
        raise
    except Exception as error:
        if is_lost(error):
            raise failure_of_others(error) from error
        if publish_failure(explain(error)):
            status = 2 if is_expected(error) else 1
            sys.exit(status)  # that rank prints the error
        raise
    except SystemExit as stop:
        # Lightning turns Ctrl-C into a plain exit.
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise


@rank_zero_only
def _warn(lines: Sequence[str]) -> None:
    """Prints lines on the first rank alone."""
    for line in lines:
        print(line, file=sys.stderr)


def stop_line(stop: Stopped, command: str, arguments: Sequence[str]) -> str:
    """Says where the run stopped, and the command that resumes it.

    Example:
        >>> stop = Stopped(15, Path("b"), step=40)
        >>> print(stop_line(stop, "fit", ["--config", "a", "--ckpt_path=old"]))
        vlmtune: stopped by SIGTERM at step 40, resume with: vlmtune fit --config a --ckpt-path b
    """
    if stop.path is None:
        return f"vlmtune: stopped by {stop.signal.name} outside training, no checkpoint was written"
    words = ["vlmtune", command]
    for given in given_options(arguments, lambda key: key == "ckpt_path"):
        if not given.key:  # all but the checkpoint of before
            words += given.words
    resume = shlex.join([*words, "--ckpt-path", str(stop.path)])
    return f"vlmtune: stopped by {stop.signal.name} at step {stop.step}, resume with: {resume}"


class Announcement(pl.Callback):
    """Prints what is trained, once the run can start. A frozen reference copy is not counted.

    Before, it warns of training sets that may have images of the benchmarks. At the end it prints
    why nothing was trained, or why training stopped early.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started = False

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        if not (trainer.is_global_zero and isinstance(data, ShardDataModule)):
            return
        for callback in _benchmark_callbacks(trainer):
            from vlmtune.cli.contamination import unchecked  # it knows builders and tables

            _warn(unchecked(data.sets["train"], callback.benchmarks))

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        if not self.started:
            print(f"vlmtune fit: {_untrained(trainer)}", file=sys.stderr)
        for callback in trainer.early_stopping_callbacks:
            # With a patience of 0 the first check without a better number stops the run.
            if callback.wait_count >= max(1, callback.patience):
                print(
                    f"vlmtune fit: stopped early at step {trainer.global_step}: {callback.monitor} "
                    f"has not improved, checked {counted(callback.wait_count, 'time')}",
                    file=sys.stderr,
                )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self.started = True
        model = cast(AdaptationModule, pl_module)
        # As one module: a parameter that backbone and adapter have in common counts once.
        parameters = list(ModuleList([model.backbone, model.adapter]).parameters())
        trained = sum(one.numel() for one in parameters if one.requires_grad)
        whole = sum(one.numel() for one in parameters)
        name = f"{type(model.adapter).__name__} on {type(model.backbone).__name__}"
        if model.backbone.random_weights:
            name += " (random weights)"
        print(
            f"vlmtune fit: {name}, {count(trained)} of {count(whole)} parameters trained, output "
            f"in {trainer.default_root_dir}",
            file=sys.stderr,
        )
        # Lightning divides the gradients of an epoch's last batches by as many as those of others.
        batches = trainer.num_training_batches
        accumulated = trainer.accumulate_grad_batches
        if batches % accumulated > 0:  # NaN without an end
            print(
                f"warning: an epoch's last step has {int(batches % accumulated)} of {accumulated} "
                f"accumulated batches, so its gradient is smaller: choose a divisor of {batches}",
                file=sys.stderr,
            )


def _benchmark_callbacks(trainer: pl.Trainer) -> list[BenchmarkCallback]:
    callbacks = cast(Any, trainer).callbacks  # an attribute that Lightning sets later
    return [one for one in callbacks if isinstance(one, BenchmarkCallback)]


def _untrained(trainer: pl.Trainer) -> str:
    """Says why a run took no step."""
    for name in ("max_steps", "max_epochs", "limit_train_batches"):
        if getattr(trainer, name) == 0:
            return f"nothing was trained: --trainer.{name} is 0; raise it to train"
    return (
        f"nothing was left to train: {trainer.ckpt_path or 'the run'} is at step "
        f"{trainer.global_step}, the end of the run; raise --trainer.max_steps or "
        "--trainer.max_epochs to train on"
    )


class VlmtuneCLI(LightningCLI):
    """LightningCLI for one command, with errors of one line.

    The model is an `AdaptationModule`, whose arguments are the keys of `model`. If a config or an
    argument names a class under `model`, it is of that class, for example
    `{class_path: vlmtune.training.methods.MMAdapterModule, init_args: {...}}`.
    """

    def __init__(self, command: str, arguments: list[str]) -> None:
        self.command = command
        self.nameless = loses_name(arguments)
        arguments, self.items = rewritten(arguments)
        self.named = names_module(arguments)
        if self.named:
            arguments = with_nulls(arguments, "model")
        strict = {"exit_on_error": False, "allow_abbrev": False}
        ours = [Announcement(), RunMonitor(), WandbRuns(), Origin(), LastCheckpoint()]
        super().__init__(
            AdaptationModule,
            ShardDataModule,
            subclass_mode_model=self.named,
            save_config_callback=SaveConfig,
            save_config_kwargs={"save_to_log_dir": False},  # `SaveConfig` leaves secrets out
            trainer_defaults={
                "default_root_dir": "runs",
                "enable_model_summary": False,
                "callbacks": ours,
                "use_distributed_sampler": False,  # shards are split over ranks by the DataModule
            },
            seed_everything_default=0,
            parser_kwargs={"prog": "vlmtune", **strict, command: {**strict}},
            args=[command, *arguments],
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The one command; a parser for each would take longer to make."""
        return {self.command: LightningCLI.subcommands()[self.command]}

    def _run_subcommand(self, subcommand: str) -> None:
        path = self.config_init[subcommand].ckpt_path
        with lightning_runs(path):
            if subcommand != "fit":
                validates = subcommand == "validate"
                measures = validates and self.datamodule.sets["val"]
                if not (measures or _benchmark_callbacks(self.trainer)):
                    empty = " and data.val no shards" if validates else ""
                    line = (
                        f"vlmtune {subcommand}: nothing is measured: trainer.callbacks has no "
                        f"BenchmarkCallback{empty}; `vlmtune evaluate` measures a checkpoint on "
                        "any benchmark"
                    )
                    _warn([line])
                super()._run_subcommand(subcommand)
                return
            if not self.datamodule.sets["val"]:
                check_monitored(self.trainer, {"val": "data.val has no shards; name some there"})
            continue_runs(self.trainer, path)
            adapter = type(self.model.adapter).__name__
            names = [Path(shards.path).name for shards in self.datamodule.sets["train"]]
            name_runs(self.trainer, adapter, " and ".join(names))
            with alone_in(self.trainer, path):
                super()._run_subcommand(subcommand)

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        # Nothing is ever unpickled: our checkpoints hold plain values.
        parser.set_defaults({"weights_only": True})
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses with errors of one line, and without Lightning's warning about `args`.

        Items of lists can be changed once the lists are known, so those are parsed first.
        """
        words: Any = args
        try:
            if self.items:
                # Plug-ins in YAMLs are read first, so that an item of their lists can be named.
                shown = [word for word in words if not word.startswith("--print_config")]
                known = parser.parse_args(shown)[self.command]
                content = yaml.safe_load(self._parser(self.command).dump(known))
                changed = changed_lists(content, self.items)
                if self.named:
                    changed = with_nulls(changed, "model")
                words = [*words, *changed]
            self.config = parser.parse_args(words)
        except (argparse.ArgumentError, TypeError) as error:
            keys = [action.dest for action in self._parser(self.command)._actions]
            raise configuration_error(error, keys) from error
        check_numbers(self.config[self.command])

    def _parse_ckpt_path(self) -> None:
        # Lightning loads hyperparameters here; our checkpoints hold none. A checkpoint that cannot
        # be resumed fails here, early.
        path = self.config[self.command].get("ckpt_path")
        if path and path not in KEYWORDS:
            remove_leftovers(Path(path))
            check_checkpoint(path)

    def before_instantiate_classes(self) -> None:
        """Seeds model and data as everything else, and refuses what makes no optimizer."""
        config = self.config[self.command]
        config.trainer.default_root_dir = trial_folder(config.trainer.default_root_dir)
        # A model by class path has its arguments one level deeper.
        model = config.model.get("init_args", config.model)
        data = config.data.get("init_args", config.data)
        has_seed = not isinstance(config.seed_everything, bool)  # False: none, True: a random one
        for values in (model, data):
            if has_seed and values.get("seed") is None:
                values["seed"] = config.seed_everything
        check_optimizer(model.get("optimizer"))
        if not self.nameless:
            return
        for callback in config.trainer.callbacks or []:
            class_path = str(getattr(callback, "class_path", ""))
            if class_path.endswith(".BenchmarkCallback"):
                callback.init_args.name = None  # the class of the adapter names the run

    def instantiate_classes(self) -> None:
        """Makes all classes, with errors of one line, and reports missing data before any model."""
        check_shards(self.command, self.config[self.command].data)
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, OverflowError, ImportError) as error:
            if is_expected(error):
                raise
            raise configuration_error(error, ()) from error

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Makes the trainer."""
        # Before Lightning, which appends its bar to this very list.
        config = self.config_init[self.command]
        given = list(map(type, config.trainer.callbacks or []))
        if config.trainer.logger is None:
            kwargs["logger"] = default_logger(self.command, config)
        trainer = super().instantiate_trainer(**kwargs)
        # With a logger of the user Lightning would save in the logger's folder.
        for checkpoints in trainer.checkpoint_callbacks:
            if isinstance(checkpoints, ModelCheckpoint) and checkpoints.dirpath is None:
                checkpoints.dirpath = os.path.join(trainer.default_root_dir, CHECKPOINTS)
        # Lightning's bar counts epochs.
        bar = trainer.progress_bar_callback
        callbacks = cast(Any, trainer).callbacks  # an attribute that Lightning sets later
        if bar is not None and type(bar) not in given:
            position = callbacks.index(bar)
            callbacks[position] = RunProgress()
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpoints()
        return trainer

    def after_fit(self) -> None:
        """Shows the numbers of the last weights, and where the checkpoints are."""
        if not self.trainer.is_global_zero:
            return
        for callback in _benchmark_callbacks(self.trainer):
            if callback.results or callback.not_run:
                title = f"weights of step {self.trainer.global_step}, the last"
                show([callback.run_report(self.trainer, self.model)], title)
        # A run that took no step has the checkpoint that it was given.
        callbacks = cast(Any, self.trainer).callbacks
        if any(isinstance(one, Announcement) and one.started for one in callbacks):
            for line in checkpoint_lines(self.trainer):
                print(line)
        if wandb_loggers(self.trainer):
            from vlmtune.cli.wandb_export import log_export  # W&B is an extra

            for checkpoint, aliases in exported_checkpoints(self.trainer).items():
                log_export(self.trainer, checkpoint, aliases)
