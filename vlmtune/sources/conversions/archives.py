"""An archive that came inside another one.

In: a zip below the data root. Out: its members. Never: a file outside the folder of the members.
"""

from pathlib import Path

from vlmtune.sources.ledger import Ledger
from vlmtune.sources.unpack import unpack


def unpack_inner(root: Path, archive: str, out: str) -> None:
    """Unpacks a zip of images to `out`/images, whether or not its members lie in such a folder."""
    folder = root / out
    ledger = Ledger(root)
    written = unpack(root / archive, "zip", folder, ledger, "images/*", 0, required=False)
    if not written:
        unpack(root / archive, "zip", folder / "images", ledger, "*", 0)
