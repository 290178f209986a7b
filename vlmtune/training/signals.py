"""Stops a training at a signal, on all ranks at the end of one step, with a checkpoint.

In: SIGTERM, SIGINT or SIGUSR1 at any rank. Out: a checkpoint and `Stopped`, or a requeued job.
Never: work in a signal handler beside noting the signal; a broadcast there hangs if it interrupts
another call to all ranks.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from typing_extensions import override

from vlmtune.training.checkpoint_files import ON_SIGNAL
from vlmtune.training.failures import outlive_children

# Windows has no SIGUSR1.
_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class Stopped(SystemExit):
    """A signal ended the run.

    Attributes:
        signal: The signal.
        path: The checkpoint to resume from; None if training had not begun or was over.
        step: Optimizer steps in it.
        code: Exit status: 128 and the number of the signal; 0 after a job was requeued, and for the
            processes that rank 0 started, as Lightning kills rank 0 if one of them fails.
    """

    def __init__(
        self, number: int, path: Path | None = None, step: int = 0, code: int | None = None
    ) -> None:
        if code is None:
            code = 128 + number
        super().__init__(code)
        self.signal = signal.Signals(number)
        self.path = path
        self.step = step


class Signals(_SignalConnector):
    """The signals of a run, in place of the handlers of Lightning's trainer.

    A handler notes the signal on its rank. Each training step adds the notes of all ranks
    (`finite.batch_check`), so all ranks know of a signal in the same step, and `act` at its end.
    SIGTERM and SIGINT write a checkpoint and stop. SIGUSR1 writes one and trains on; in a job of
    Slurm it requeues the job and stops. Before the first step and after the last, SIGTERM and
    SIGINT stop at once; so does a second SIGINT.
    """

    def __init__(self, trainer: "pl.Trainer") -> None:
        super().__init__(trainer)
        self._training = False
        self._here: set[int] = set()  # came to this rank since the last `act`
        self._agreed: set[int] = set()  # came to any rank
        self._step = -1  # of the trainer, when ranks last agreed
        self.register_signal_handlers()

    @override
    def register_signal_handlers(self) -> None:
        if not self._original_handlers:  # Lightning calls this again before it trains
            self._original_handlers = self._get_current_signal_handlers()
            for number in SIGNALS:
                self._register_signal(number, self._note)

    def train(self, training: bool) -> None:
        """Notes that training begins or ends: only then can a signal wait for the end of a step."""
        self._training = training

    def counts(self) -> list[int]:
        """Returns 1 for each of `SIGNALS` that came to this rank, else 0."""
        return [int(number in self._here) for number in SIGNALS]

    def agree(self, counts: Sequence[float]) -> None:
        """Notes the signals that came to any rank, given the sums of `counts` over ranks."""
        for number, count in zip(SIGNALS, counts, strict=True):
            if count:
                self._agreed.add(number)
        self._step = self.trainer.global_step

    def act(self) -> None:
        """Writes the checkpoint of an agreed signal, once the optimizer has stepped.

        Raises:
            Stopped: The run ends here, on every rank.
        """
        step = self.trainer.global_step
        if not self._agreed or step == self._step:  # between batches of one accumulated step
            return
        # In the order of `SIGNALS`, a signal that stops comes before one that goes on.
        agreed = [number for number in SIGNALS if number in self._agreed]
        self._agreed = set()
        self._here = set()
        folder = self.trainer.default_root_dir
        slurm = self._slurm()
        path = Path(folder) / ON_SIGNAL
        if slurm:  # where Lightning looks by itself when the job starts again
            path = Path(self.trainer._checkpoint_connector.hpc_save_path(folder))
        goes_on = agreed[0] == getattr(signal, "SIGUSR1", None)
        requeues = goes_on and slurm
        if requeues:
            self._slurm_sigusr_handler_fn(agreed[0], None)  # type: ignore[arg-type]
        else:
            self.trainer.save_checkpoint(path)
        if goes_on and not slurm:
            if self.trainer.is_global_zero:
                print(f"vlmtune fit: wrote {path} (weights of step {step})", file=sys.stderr)
            return
        self._training = False
        code = 0 if requeues or self._is_child() else None
        raise Stopped(agreed[0], path, step, code)

    def _note(self, number: int, frame: Any) -> None:
        again = number == signal.SIGINT and number in self._here
        if self._training and not again:
            self._here.add(number)
            if number == signal.SIGINT and self.trainer.is_global_zero:
                line = "vlmtune: stopping after this step; press Ctrl-C again to stop at once\n"
                with contextlib.suppress(OSError):  # nobody may read it any more
                    os.write(2, line.encode())  # `print` may not be called within itself
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif number == signal.SIGTERM:
            if self.trainer.strategy.launcher is not None:
                self.trainer.strategy.launcher.kill(number)  # pyright: ignore[reportArgumentType]
            raise Stopped(number)
        else:
            self._here.add(number)  # the first step will write a checkpoint

    def _slurm(self) -> bool:
        environment = self._environment()
        return isinstance(environment, SLURMEnvironment) and environment.auto_requeue

    def _is_child(self) -> bool:
        """Whether rank 0 started this process; Slurm and torchrun start each one themselves."""
        here = isinstance(self._environment(), LightningEnvironment)
        return here and self.trainer.local_rank > 0

    def _environment(self) -> Any:
        return self.trainer._accelerator_connector.cluster_environment


class StopsAtSignals(pl.LightningModule):
    """A module whose trainer has `Signals`; its `training_step` makes ranks agree on them."""

    signals: Signals | None = None  # there are none without a trainer

    @override
    def setup(self, stage: str) -> None:
        """Replaces the signal handlers of the trainer, and how it watches other processes."""
        outlive_children()
        self.signals = self.trainer._signal_connector = Signals(self.trainer)

    @override
    def on_train_start(self) -> None:
        """From here on a signal waits for the end of a step."""
        if self.signals is not None:
            self.signals.train(True)

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Acts after all callbacks: what they do in this step is part of the checkpoint."""
        if self.signals is not None:
            self.signals.act()

    @override
    def on_train_end(self) -> None:
        """From here on a signal stops the run at once."""
        if self.signals is not None:
            self.signals.train(False)
