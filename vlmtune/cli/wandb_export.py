"""The exports of the last and of the best weights of a fit, as an artifact of its W&B run.

In: a finished trainer and a checkpoint. Out: an artifact. Never: an error of a training.
"""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pytorch_lightning as pl
import wandb
from rich.filesize import decimal

from vlmtune.errors import UserError
from vlmtune.export import save_export
from vlmtune.model import check_checkpoint, read_checkpoint
from vlmtune.training.module import adaptation
from vlmtune.training.wandb_runs import wandb_loggers

MOST_BYTES = 10**8  # each trial of a sweep uploads its export
log = logging.getLogger("vlmtune")


def log_export(trainer: pl.Trainer, checkpoint: Path, aliases: list[str]) -> None:
    """Logs what `vlmtune export` writes of a checkpoint to each W&B run of the trainer.

    An export of more than 100 MB, such as a whole backbone, is not logged; a line says so.
    The metadata of the artifact name the training shards and their digest, so that equal digests
    mean equal training data, and the digest of the model, as in the config of runs that it teaches.
    """
    # The training has used these packages, so its checkpoint may.
    packages = set()
    for module in adaptation(trainer.lightning_module).modules():
        package, _, _ = type(module).__module__.partition(".")
        packages.add(package)
    sets = trainer.datamodule.sets["train"]  # type: ignore[attr-defined]
    data = {str(shards.path): shards.digest() for shards in sets}
    step = check_checkpoint(checkpoint)["global_step"]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "export")
        try:
            # The file has the averaged weights of an EMA, and whole ones of a sharded model.
            model = read_checkpoint(checkpoint, tuple(packages))
            save_export(folder, model.backbone, model.adapter, provenance=model.provenance)
        except UserError as error:
            log.warning("no export in W&B: %s", error)  # the training itself is complete
            return
        size = sum(file.stat().st_size for file in folder.iterdir())
        if size > MOST_BYTES:
            log.info("no export in W&B: it has %s, and `log_model` logs checkpoints", decimal(size))
            return
        facts = {"step": step, "data": data, "digest": model.digest()}
        for logger in wandb_loggers(trainer):
            artifact = wandb.Artifact(f"export-{logger.version}", type="model", metadata=facts)
            # W&B copies the files at once, and uploads the copies later.
            artifact.add_dir(str(folder))
            logger.experiment.log_artifact(artifact, aliases=aliases)
