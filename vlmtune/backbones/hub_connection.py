"""Asks once whether the Hugging Face hub answers; its libraries would retry for over a minute.

In: the name of a model. Out: a block in which they ask the hub, or only their cache if there is no
answer.
"""

import contextlib
import functools
import re
import time
from collections.abc import Iterator

from huggingface_hub import constants, get_session
from huggingface_hub.errors import LocalEntryNotFoundError

from vlmtune.errors import UserError, reason

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # a folder may have such a name, too
SECONDS = 5  # to wait for an answer
OFFLINE = "HF_HUB_OFFLINE forbids to ask it"
AGAIN = 60  # seconds after which the hub is asked again whether it answers


@contextlib.contextmanager
def hub_or_cache(model: str) -> Iterator[bool]:
    """Lets libraries read only their cache inside the block if the hub does not answer.

    Yields:
        Whether the hub may be asked. Who misses a file of the model raises its library's error.

    Raises:
        UserError: The hub does not answer, and a file of the model is not in the cache.
    """
    # Whoever sets HF_HUB_OFFLINE wants no request at all.
    forbidden = constants.is_offline_mode()
    why = OFFLINE if forbidden else _silence(int(time.monotonic() // AGAIN))
    if why is None:
        yield True
        return
    # The libraries read this constant at each request.
    constants.HF_HUB_OFFLINE = True
    try:
        yield False
    except Exception as error:
        if not _is_missing(error):
            raise
        wanted = f"{model} on the Hugging Face hub"
        if HUB_ID.fullmatch(model):
            wanted = f"a folder {model} here, or that name on the Hugging Face hub"
        raise UserError(
            f"expected {wanted}, got no answer from {constants.ENDPOINT} "
            f"({why}) and no whole copy in {constants.HF_HUB_CACHE}: download it on a machine with "
            "network and give the folder or the weights file, or copy that cache here and set "
            "HF_HUB_OFFLINE=1"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = forbidden


@functools.lru_cache(1)
def _silence(now: int) -> str | None:
    """Why the hub does not answer; None if it does. The answer holds for a while."""
    del now
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # of the network: each version of the library has its own
        return reason(error)
    return None


def _is_missing(error: BaseException | None) -> bool:
    """Whether an error comes from a file that the cache lacks."""
    while error is not None and not isinstance(error, LocalEntryNotFoundError):
        error = error.__cause__ or error.__context__
    return error is not None
