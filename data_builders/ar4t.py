"""PUG:AR4T (Bordes et al. 2023): scenes of two objects, each with its hard-negative scene."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from data_builders.common import Record, ShardBuilder
from data_builders.images import LIMIT, Presence, inside
from vlmtune.errors import UserError
from vlmtune.types import Group

_REQUIRED = ("caption", "alt_caption", "filename", "filename_neg", "filepath")


@dataclass(frozen=True)
class _Row:
    """An image, the file name of its hard negative ("" where it has none), and its captions."""

    file: str
    negative: str
    captions: tuple[str, ...]


class AR4TBuilder(ShardBuilder):
    """A scene and its hard-negative scene a record, with both captions of both.

    `caption` and `alt_caption` mean the same, so both are true of their scene. An unordered pair is
    written once; a scene whose negative is not there is a record of one image.

    Args:
        path: The csv.
        images: Folder under which `filepath` names the files.
        missing: Largest share of image files that may be missing; they are skipped and counted.
        records_per_shard: See `ShardBuilder`.
    """

    def __init__(
        self,
        path: Path,
        images: Path,
        missing: float = LIMIT,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(records_per_shard)
        self.path, self.images, self.missing = Path(path), Path(images), missing

    def sources(self) -> Mapping[str, Path]:
        """See `Builder`."""
        return {self.path.name: self.path}

    def records(self) -> Iterator[Record]:
        """See `ShardBuilder`.

        Raises:
            UserError: The csv is missing or lacks a column, an image is not inside the folder, or
                too many are missing.
        """
        presence = Presence(self.counts, self.missing)
        # Presence is asked once a file: a scene is named by its own row and by its negative's.
        rows = [
            row
            for number, row in enumerate(self._rows(), 1)
            if presence.has(inside(self.images, row.file, self.path, f"row {number}"))
        ]
        presence.check()
        for number, scenes in enumerate(self._scenes(rows)):
            self.counts["pairs" if len(scenes) == 2 else "without negative"] += 1
            yield _group(f"{number:07d}", scenes), [self.images / s.file for s in scenes]

    def _scenes(self, rows: Sequence[_Row]) -> list[list[_Row]]:
        """Every pair once, then the scenes that are in no pair."""
        captioned = [row for row in rows if row.captions]
        self.counts["skipped: no caption"] += len(rows) - len(captioned)
        index = _Index(captioned)
        pairs: dict[frozenset[str], list[_Row]] = {}
        for row in captioned:
            negative = index.negative(row)
            if negative is not None:
                pairs.setdefault(frozenset((row.file, negative.file)), [row, negative])
        paired = frozenset[str]().union(*pairs)
        return [*pairs.values(), *([row] for row in captioned if row.file not in paired)]

    def _rows(self) -> list[_Row]:
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                lacking = [c for c in _REQUIRED if c not in (reader.fieldnames or ())]
                if lacking:
                    raise UserError(
                        f"expected the columns {list(_REQUIRED)} in {self.path}, got none called "
                        f"{lacking}: pass PUG:AR4T's csv"
                    )
                return [_row(values) for values in reader]
        except OSError as error:
            raise UserError(
                f"expected PUG:AR4T's csv at {self.path}, got {error.strerror}: correct the path"
            ) from error
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(
                f"expected a csv at {self.path}, got {error}: download it again"
            ) from error


def _row(values: Mapping[str, str | None]) -> _Row:
    said = (" ".join((values[c] or "").split()) for c in ("caption", "alt_caption"))
    # pandas writes an empty cell as "nan" when it was told to.
    captions = dict.fromkeys(c for c in said if c and c.lower() != "nan")
    negative = (values["filename_neg"] or "").strip()
    return _Row(
        (values["filepath"] or "").strip().lstrip("/"),
        "" if negative.lower() == "nan" else negative,
        tuple(captions),
    )


class _Index:
    """Finds rows by file name: in the folder of the asking row first, as names may recur."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.by_path = {row.file: row for row in rows}
        self.by_name: dict[str, _Row | None] = {}
        for row in rows:
            name = PurePosixPath(row.file).name
            self.by_name[name] = None if name in self.by_name else row

    def negative(self, row: _Row) -> _Row | None:
        if not row.negative:
            return None
        beside = str(PurePosixPath(row.file).parent / PurePosixPath(row.negative).name)
        found = self.by_path.get(row.negative) or self.by_path.get(beside)
        found = found or self.by_name.get(PurePosixPath(row.negative).name)
        return None if found is row else found


def _group(key: str, scenes: Sequence[_Row]) -> Group:
    texts = tuple(dict.fromkeys(text for scene in scenes for text in scene.captions))
    return Group(
        key=key,
        image_ids=tuple(scene.file for scene in scenes),
        text_ids=texts,
        texts=texts,
        truth=torch.tensor([[text in scene.captions for text in texts] for scene in scenes]),
        true_ids=tuple(frozenset(scene.captions) for scene in scenes),
    )
