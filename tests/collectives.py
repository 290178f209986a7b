"""Which collectives a process makes, and whether all ranks make the same.

NCCL compares nothing: where ranks differ in kind, order, shape or dtype it hangs or adds numbers
that do not belong together. gloo raises at most. So ranks note what they call, and are compared.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NO_COLLECTIVES = ("wait_tensor", "_wrap_tensor_autograd")  # what FSDP2 does with a result


class Call(NamedTuple):
    """A collective: its operator, dtypes and shapes of its tensors, and its numbers and reduction.

    Objects travel as bytes, padded to the longest of all ranks, so shapes are equal there too.
    """

    op: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    rest: tuple[Any, ...]


class Collectives(TorchDispatchMode):
    """Notes the collectives that this thread makes, those of DDP and Lightning among them.

    All pass PyTorch's dispatcher. The process group counts what it is asked for, by any thread and
    from C++, and on leaving the context both numbers must be equal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and a guard against that takes as long as an operator."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func.namespace in ("c10d", "_c10d_functional")
        if made and func._opname not in NO_COLLECTIVES:
            self.calls.append(call(func, args))
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "Collectives":
        self._before = asked_for()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if dist.is_initialized():
            assert len(self.calls) == asked_for() - self._before, "some collective was not seen"


def asked_for() -> int:
    """How many collectives the process group was asked for."""
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()


def call(func: Any, args: Any) -> Call:
    tensors, rest = [], []
    for leaf in tree_leaves(args):
        if isinstance(leaf, torch.Tensor):
            tensors.append((str(leaf.dtype), tuple(leaf.shape)))
        elif isinstance(leaf, (int, str)):
            rest.append(leaf)
        elif isinstance(leaf, torch.ScriptObject) and "ReduceOp" in str(leaf._type()):
            rest.append(dist.ReduceOp.unbox(leaf).op.name)
    if func._opname in ("gather_", "scatter_"):
        tensors = tensors[:1]  # one rank has all of them, which are alike
    return Call(str(func), tuple(tensors), tuple(rest))


def difference(by_rank: list[list[Call]]) -> str | None:
    """Where the calls of some rank are not those of rank 0, or None."""
    first, *others = by_rank
    for rank, calls in enumerate(others, 1):
        for number, (one, other) in enumerate(zip(first, calls, strict=False)):
            if one != other:
                return f"call {number}: rank 0 makes {one}, rank {rank} makes {other}"
        if len(first) != len(calls):
            return f"rank 0 makes {len(first)} calls, rank {rank} makes {len(calls)}"
    return None
