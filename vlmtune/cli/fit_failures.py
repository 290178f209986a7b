"""What fails in Lightning for a config or a checkpoint of the user becomes one line.

In: an error, and the checkpoint of the command. Out: an error of one line, with the reason.
Never: a change of what vlmtune's own code raises in training.
"""

import contextlib
import traceback
from collections.abc import Iterator

from vlmtune.cli.explain import is_expected
from vlmtune.errors import UserError, reason
from vlmtune.training.failures import is_lost

LIGHTNING = ("pytorch_lightning.", "lightning_fabric.")
# It finds a checkpoint, and hands its parts to all that restore them; it also collects them.
CHECKPOINTS, COLLECTS = "pytorch_lightning.trainer.connectors.checkpoint_connector", "dump_"


@contextlib.contextmanager
def lightning_runs(checkpoint: str | None) -> Iterator[None]:
    """The boundary between what a user gives to Lightning and vlmtune.

    What fails while a checkpoint is restored is a fault of the checkpoint, whoever raises it. What
    Lightning itself raises is one of the config.
    """
    try:
        yield
    except Exception as error:
        if is_expected(error) or is_lost(error):
            raise
        why = " ".join(reason(error).split())
        # The frames tell whose fault it is: Lightning raises plain errors of any kind.
        restores, modules, function = False, [], ""
        for frame, _ in traceback.walk_tb(error.__traceback__):
            module = frame.f_globals.get("__name__", "")
            function = frame.f_code.co_name
            modules.append(module)
            restores |= module == CHECKPOINTS and not function.startswith(COLLECTS)
        if restores:
            raise UserError(
                f"expected a checkpoint that this run can use, got {checkpoint!r} ({why}): change "
                "--ckpt-path"
            ) from error
        # No code of ours had called Lightning but the command.
        ours = [x for x in modules if x.startswith("vlmtune.") and not x.startswith("vlmtune.cli.")]
        if modules[-1].startswith(LIGHTNING) and not ours:
            raise UserError(
                f"expected a config that Lightning can run, got {why} in its {function}: "
                "change the config"
            ) from error
        raise
