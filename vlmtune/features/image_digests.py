"""Digests of the images of a corpus, computed once and kept in a file.

In: a digest of the corpus and its image ids. Out: the digest of each image.
Never: a second reading of an unchanged corpus.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path

from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, write_text
from vlmtune.storage.folder import locked


def image_digests(
    root: Path, source: str, ids: Collection[str], compute: Callable[[], dict[str, str]]
) -> dict[str, str]:
    """Returns the digests of images by id.

    Args:
        root: Folder of stores; a JSON file in it holds the digests.
        source: Digest of the corpus.
        ids: Ids of all its images.
        compute: Reads the images and returns their digests; called if the file lacks them.

    Raises:
        UserError: `root` cannot be made.
    """
    path = Path(root) / f"images-{source[:16]}.json"

    def stored() -> dict[str, str] | None:
        try:
            known = read_json(path, "digests of images", shape=dict[str, str])
        except UserError:  # missing or damaged
            return None
        return known if known.keys() == set(ids) else None

    digests = stored()  # without a lock, so in a folder that cannot be written, too
    if digests is None:
        with locked(path):
            digests = stored()  # another process may have written it meanwhile
            if digests is None:
                digests = compute()
                write_text(path, json.dumps(digests))
    return digests
