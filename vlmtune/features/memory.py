"""Features in memory, by id, for as long as the process lives.

In: ids and features. Out: the features of ids. Never: a file.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlmtune.types import Features, Pooled, Tokens


class MemoryStore:
    """Features by id for as long as the process lives; padding is not stored.

    Example:
        >>> memory = MemoryStore()
        >>> memory.add(["a", "b"], Pooled(torch.eye(2)))
        >>> memory.features(["b"]).values
        tensor([[0., 1.]])
    """

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, ids: Sequence[str], features: Features) -> None:
        """Stores the rows of `features` under `ids`."""
        if isinstance(features, Pooled):
            rows = zip(ids, features.values, strict=True)
            self._rows.update(rows)
            return
        # Without padding, each row takes the memory of its own tokens only.
        lengths = features.lengths.tolist()
        for name, tokens, length in zip(ids, features.values, lengths, strict=True):
            real = tokens[:length]
            # A part of a tensor would keep the whole in memory.
            self._rows[name] = real.clone() if length < len(tokens) else real

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of `ids`, at least one, in their order; tokens padded to the longest."""
        rows = [self._rows[name] for name in ids]
        if rows[0].ndim == 1:
            return Pooled(torch.stack(rows))
        tokens = pad_sequence(rows, batch_first=True)
        # Real tokens come before padding, so the length of a row gives its mask.
        lengths = torch.tensor(list(map(len, rows)))
        positions = torch.arange(tokens.shape[1])
        mask = positions < lengths[:, None]
        return Tokens(tokens, mask)
