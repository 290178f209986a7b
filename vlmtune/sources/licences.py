"""Licences and terms: shown once, and written beside the data.

In: orders, and the names of sources whose terms a person accepted. Out: `licences.json`.
Never: a download under terms that nobody accepted.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError
from vlmtune.sources.order import Order, source_name
from vlmtune.storage.files import read_json, write_text

FILE = "licences.json"
Recorded = dict[str, dict[str, Any]]


def accept(
    wanted: Sequence[Order], accepted: Iterable[str], root: Path, write: bool = True
) -> None:
    """Raises a `UserError` unless all terms were accepted; records licences with `write`.

    `accepted` names sources. What was accepted before, word for word, stays accepted.
    """
    recorded = _recorded(root)
    names = set(map(source_name, accepted))
    known = dict(recorded)
    for order in wanted:
        entry = _entry(order)
        before = recorded.get(order.name, {})
        terms = order.source.terms
        if terms is not None:
            # Terms that were reworded at their source have to be accepted again.
            is_accepted = before.get("terms") == terms and "accepted" in before
            if not is_accepted and order.name not in names and not names & order.readers:
                raise UserError(
                    f"expected the terms of {order.name} to be accepted ({' '.join(terms.split())}"
                    f"), got no answer: if you accept them, run `vlmtune download {order.name} "
                    f"--accept {order.name}`"
                )
            now = datetime.now(UTC).isoformat(timespec="seconds")
            entry["accepted"] = before["accepted"] if is_accepted else now
        known[order.name] = entry
    if write and known != recorded:  # an unchanged file keeps its date
        write_text(root / FILE, json.dumps(known, indent=2, ensure_ascii=False) + "\n")


def is_new(order: Order, root: Path) -> bool:
    """Whether the licences of a source, as they are now, were not recorded yet."""
    before = dict(_recorded(root).get(order.name, {}))
    before.pop("accepted", None)
    return before != _entry(order)


def _recorded(root: Path) -> Recorded:
    path = root / FILE
    if not path.exists():
        return {}
    return read_json(path, "recorded licences", "move it away and run again", Recorded)


def _entry(order: Order) -> dict[str, Any]:
    source = order.source
    entry = {"title": source.title, "page": source.page, **source.licence.model_dump()}
    if source.terms is not None:
        entry["terms"] = source.terms
    return entry
