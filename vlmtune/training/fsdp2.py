"""Weights, gradients and optimizer states in parts, one on each rank: PyTorch's FSDP2.

In: a module whose trained weights would fill a device. Out: the same training with 1 / W of them
on each of W ranks, and ordinary checkpoints. Never: another loss.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, empty
from torch.utils._pytree import tree_map_only
from typing_extensions import override

from vlmtune.errors import UserError
from vlmtune.model.loading import check_checkpoint, on_cpu
from vlmtune.training.ema import EMA
from vlmtune.training.module import AdaptationModule, adaptation
from vlmtune.training.retention_budget import RetentionBudget
from vlmtune.training.sharded_checkpoint import write_folder


class FSDP2(ModelParallelStrategy):
    """Shards trained weights over all ranks by `torch.distributed.fsdp.fully_shard`.

    Each block of a tower in which something is trained is gathered when it runs, with its frozen
    weights, and freed afterwards. All other trained weights are gathered for a whole step. Frozen
    weights elsewhere and single numbers (the temperature) stay whole on each rank. An evaluation
    gathers all weights, so that ranks need not run equal numbers of batches.

    Checkpoints are as with any strategy, unless `sharded_checkpoints` is set: gathered, of the
    trained weights alone. A run may resume with another strategy or another number of ranks.

    Args:
        sharded_checkpoints: Makes a checkpoint a folder in which each rank writes its own part of
            weights and optimizer state, so that no rank ever holds the whole. All that reads
            checkpoints reads such folders too. All ranks must share the file system.

    Raises:
        UserError: The module embeds in chunks, a callback changes weights between steps, or
            sharded checkpoints would be written to an address.
    """

    def __init__(self, sharded_checkpoints: bool = False) -> None:
        super().__init__(save_distributed_checkpoint=False)
        self._sharded_checkpoints = sharded_checkpoints
        self._groups: list[FSDPModule] = []  # the whole module first

    @override
    def setup_environment(self) -> None:
        self._tensor_parallel_size = 1
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Shards the module and makes the optimizer; outside training the module stays whole."""
        module = adaptation(cast(pl.LightningModule, self.lightning_module))
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(module)
        self.model_to_device()
        if trainer.state.fn == TrainerFn.FITTING:
            check_parts(trainer, module)
            if self._sharded_checkpoints and "://" in str(trainer.default_root_dir):
                raise UserError(
                    "expected a folder of this machine as --trainer.default_root_dir for sharded "
                    f"checkpoints, got {trainer.default_root_dir}: choose one that ranks share"
                )
            self._shard(module)
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def _shard(self, module: AdaptationModule) -> None:
        # Names survive sharding, objects do not.
        name_of = {parameter: name for name, parameter in module.named_parameters()}
        scale_of_name = {}
        for parameter, scale in module.adapter.lr_scales():
            scale_of_name[name_of[parameter]] = scale
        single_numbers = {parameter for parameter in name_of if not parameter.ndim}
        frozen = {parameter for parameter in name_of if not parameter.requires_grad}
        # fully_shard takes no single numbers; a hook averages their gradients instead.
        for parameter in single_numbers - frozen:
            parameter.register_post_accumulate_grad_hook(_average)
        shard = partial(fully_shard, mesh=self.device_mesh["data_parallel"])
        blocks = list(trained_blocks(module))
        for block in blocks:
            frozen -= set(block.parameters())
            shard(block, ignored_params=single_numbers)
        # Frozen weights outside the blocks stay whole: they have neither gradient nor state.
        shard(module, ignored_params=single_numbers | frozen)
        for step in ("training_step", "validation_step"):
            register_fsdp_forward_method(module, step)
        self._groups = [cast(FSDPModule, part) for part in (module, *blocks)]
        # The adapter knows the parameters of before; each is another object now.
        sharded = dict(module.named_parameters())
        scales = [(sharded[name], scale) for name, scale in scale_of_name.items()]
        module.adapter.lr_scales = lambda: scales  # type: ignore[method-assign]

    # -- evaluation ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Gathers all weights inside the block; no rank waits for others there."""
        self._gather()
        try:
            yield
        finally:
            self._free()

    @override
    def on_validation_start(self) -> None:
        self._gather()

    @override
    def on_validation_end(self) -> None:
        self._free()

    def _gather(self) -> None:
        for part in self._groups:
            # The root must be known before a block runs alone.
            part._get_fsdp_state()._lazy_init()
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()

    def _free(self) -> None:
        for number, part in enumerate(self._groups):
            part.reshard()
            part.set_reshard_after_forward(number > 0, recurse=False)

    # -- checkpoints --------------------------------------------------------------------------

    @property
    @override
    def lightning_restore_optimizer(self) -> bool:
        return True

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        if self._sharded_checkpoints:
            self._free()  # a validation, at whose end checkpoints are written, gathered them
        return self.lightning_module.state_dict()

    @override
    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return Strategy.optimizer_state(self, optimizer)

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Writes a folder of parts, or gathers them on all ranks and writes one file."""
        if self._sharded_checkpoints and self._groups:
            write_folder(checkpoint, Path(filepath), self.checkpoint_io.save_checkpoint)
            return
        whole = tree_map_only(DTensor, lambda part: part.full_tensor().cpu(), checkpoint)
        Strategy.save_checkpoint(self, whole, filepath, storage_options)

    @override
    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        if not Path(checkpoint_path).is_dir():
            return Strategy.load_checkpoint(self, checkpoint_path, weights_only)
        if not self._groups:  # outside training the module is whole
            return check_checkpoint(checkpoint_path, on_cpu)
        checked = slice(self.global_rank, None, self.world_size)
        return check_checkpoint(checkpoint_path, self._make_part, checked)

    def _make_part(self, hollow: Tensor) -> DTensor:
        """The tensor that this rank's part is read into, split as `fully_shard` splits."""
        mesh = self.device_mesh["data_parallel"]
        return empty(hollow.shape, dtype=hollow.dtype, device_mesh=mesh, placements=[Shard(0)])

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        current = self.lightning_module.state_dict()
        state = checkpoint["state_dict"]
        parts = {}
        for name, value in state.items():
            parts[name] = _part(value, current.get(name))
        self.lightning_module.load_state_dict(parts, strict=strict)

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            # A checkpoint numbers weights in the order of the optimizer's groups.
            parameters: list[nn.Parameter] = []
            for group in optimizer.param_groups:
                parameters += group["params"]
            numbers: list[int] = []
            for group in saved["param_groups"]:
                numbers += group["params"]
            state = {}
            for parameter, number in zip(parameters, numbers, strict=False):
                whole = saved["state"].get(number)
                if whole is not None:
                    part = {key: _part(value, parameter) for key, value in whole.items()}
                    state[number] = part
            optimizer.load_state_dict({**saved, "state": state})


def trained_blocks(module: AdaptationModule) -> Iterator[nn.Module]:
    """Yields the blocks of the backbone's towers in which something is trained."""
    for tower in (module.backbone.image_tower, module.backbone.text_tower):
        blocks = [] if tower is None else tower.blocks
        for block in blocks:
            if any(parameter.requires_grad for parameter in block.parameters()):
                yield block


def check_parts(trainer: pl.Trainer, module: AdaptationModule) -> None:
    """Refuses what needs whole weights between steps, or another number of calls on each rank."""
    unfit = []
    if module.scores.chunk is not None:
        unfit.append("model.chunk")
    if module.average_teacher is not None:
        unfit.append("an objective that reads averaged weights")
    for callback in cast(Any, trainer).callbacks:
        anneals = isinstance(callback, RetentionBudget) and callback.action == "anneal"
        if anneals or isinstance(callback, EMA):
            unfit.append(type(callback).__name__)
    if unfit:
        raise UserError(
            "expected whole batches and weights that only the optimizer changes with FSDP2, got "
            f"{unfit[0]}: leave it out, or use the strategy ddp"
        )


def _average(parameter: Tensor) -> None:
    """Makes a gradient the mean over ranks, as those of sharded weights are."""
    gradient = parameter.grad
    assert gradient is not None
    gradient.div_(dist.get_world_size())
    dist.all_reduce(gradient)


def _part(value: Any, like: Any) -> Any:
    """This rank's part of a tensor that a sharded one takes; anything else as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor) or value.shape != like.shape:
        return value
    on_device = value.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)
