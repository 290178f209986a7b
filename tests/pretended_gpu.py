"""A pretended GPU: tensors that say they are on another device, and compute on the CPU.

A training step on it shows two things that otherwise only a GPU would show. Tensors of two devices
do not mix. And `waits` names each operation that reads a number from the device, or copies to it
without `non_blocking`: a GPU answers only after all that was launched before it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # torch has it everywhere, and nothing else here uses it
# Operations whose result, or the size of it, the host must know.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
MIXING = {*INDEXING, "_to_copy", "copy_"}  # take tensors of two devices

waits: list[str] = []


class OnGpu(Tensor):
    """A tensor on the pretended GPU; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        waits.append("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Makes new tensors on the pretended GPU where they are asked for there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = any(isinstance(leaf, OnGpu) for leaf in tree_leaves((args, kwargs)))
        if known or kwargs.get("device") == DEVICE:
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.removeprefix("aten::")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    inputs = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    device = kwargs.get("device")
    stays = bool(inputs) if device is None else device == DEVICE
    if inputs:
        _note(name, args, stays)
    elif device == DEVICE and name == "_to_copy" and not kwargs.get("non_blocking"):
        waits.append(name)
    mixed = any(tensor.ndim and not isinstance(tensor, OnGpu) for tensor in tensors)
    if inputs and mixed and name not in MIXING:
        raise RuntimeError(f"tensors of two devices in {name}")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    held, held_kwargs = tree_map(_held, (args, kwargs))
    result = func(*held, **held_kwargs)
    # An operation in place returns the tensor that it was given.
    given = {id(tensor.held): tensor for tensor in inputs}

    def wrapped(value: Any) -> Any:
        if id(value) in given:
            return given[id(value)]
        return OnGpu(value) if stays and isinstance(value, Tensor) else value

    return tree_map(wrapped, result)


def _note(name: str, args: Any, stays: bool) -> None:
    """Notes an operation for which the host waits."""
    by_mask = False
    if name in INDEXING:
        by_mask = any(index is not None and index.dtype == torch.bool for index in args[1])
        # Positions on the CPU are copied first, and torch waits for that.
        by_mask |= any(index is not None and not isinstance(index, OnGpu) for index in args[1])
    from_gpu = name == "copy_" and isinstance(args[1], OnGpu) and not isinstance(args[0], OnGpu)
    if name in READS or by_mask or from_gpu or (name == "_to_copy" and not stays):
        waits.append(name)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnGpu) else value


def move(module: nn.Module) -> None:
    """Moves the weights of a module to the pretended GPU."""
    for part in module.modules():
        for name, weight in part.named_parameters(recurse=False):
            moved = OnGpu(weight.detach())
            part._parameters[name] = nn.Parameter(moved, weight.requires_grad)
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = OnGpu(buffer)


@contextlib.contextmanager
def pretended_gpu(monkeypatch: Any) -> Iterator[list[str]]:
    """Yields the waits of the block, in which `device="meta"` is the pretended GPU."""
    make: Callable[..., Tensor] = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = make(data, **options)
        return made if device is None else made.to(device)

    def new_tensor(self: Tensor, data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        return make(data, dtype=dtype or self.dtype).to(device or self.device)

    # These two fill their tensor before an operation can be seen.
    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(Tensor, "new_tensor", new_tensor)
    waits.clear()
    with _Mode():
        yield waits
