"""The config of a run, in its folder and with its loggers.

In: what was parsed. Out: `config.yaml`, whole, and the hyperparameters of the loggers.
Never: a password, a token or a key.
"""

import functools
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from fsspec.core import url_to_fs
from pytorch_lightning.cli import SaveConfigCallback
from typing_extensions import override

from vlmtune.storage.files import write_text
from vlmtune.storage.secrets import without_secrets


class SaveConfig(SaveConfigCallback):
    """Writes the config of a fit into its folder, and that of any command to the loggers (W&B).

    It is complete but for passwords, tokens and keys.
    """

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._folder = str(trainer.default_root_dir)  # a logger's own may be shared by runs
        super().setup(trainer, pl_module, stage)

    @override
    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        del pl_module
        for logger in trainer.loggers:
            logger.log_hyperparams(self.configuration)
        if stage != "fit":  # a validation or a test leaves the config of the training
            return
        text = yaml.safe_dump(self.configuration, sort_keys=False, allow_unicode=True)
        if "://" in self._folder:  # an object store writes whole files itself
            system, folder = url_to_fs(self._folder)
            system.makedirs(folder, exist_ok=True)
            system.pipe_file(f"{folder}/{self.config_filename}", text.encode())
        else:
            write_text(Path(self._folder) / self.config_filename, text)

    @functools.cached_property
    def configuration(self) -> dict[str, Any]:
        """The config of the run without secrets, which its report and each checkpoint repeat."""
        # Through YAML, as the parser's own values are paths and namespaces.
        text = self.parser.dump(self.config, format="yaml", skip_none=False)
        return without_secrets(yaml.safe_load(text))
