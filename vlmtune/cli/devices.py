"""Where a command computes."""

import torch

from vlmtune.errors import UserError


def find_device(name: str | None) -> torch.device:
    """Returns the device called `name`, or without a name the accelerator, else the CPU.

    Raises:
        UserError: There is no such device here.
    """
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        line = " ".join(str(error).split())
        raise UserError(
            f"expected a device that is here, got {name!r} ({line}): use cpu"
        ) from error
    return device
