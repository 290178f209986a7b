import json
from typing import Any

import pytest
import torch

from vlmtune.data import schema
from vlmtune.errors import UserError
from vlmtune.types import Group


def pair() -> Group:
    return Group(
        key="scene_1-a",
        image_ids=("i", "j"),
        text_ids=("t", "u", "v"),
        texts=("a red cube", "a blue cube", "ein Würfel"),
        truth=torch.tensor([[True, False, True], [False, True, True]]),
        true_ids=(frozenset({"t", "v", "elsewhere"}), frozenset({"u", "v"})),
        exhaustive=True,
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("images", 0, "file"), "../0.png", "at images/0/file"),
        (("images", 0, "file"), "0.gif", "at images/0/file"),
        (("images", 1, "id"), "i", "occurs twice"),
        (("texts", 1, "id"), "t", "occurs twice"),
        (("texts", 0, "text"), " \n", "is blank"),
        (("truth",), [[1, 0, 1]], "truth has shape"),
        (("truth", 0, 1), 1, "contradicts"),
        (("images", 0, "true"), [], "contradicts"),
        (("images",), [], "0 images"),
    ],
)
def test_records_that_break_the_schema(path, value, message):
    record = schema.encode(pair(), ["jpg", "png"])
    place: Any = record
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(schema.RecordError, match=message):
        schema.decode("a", record)


@pytest.mark.parametrize("key", ["", "a b", "../a", "a/b", "a.b"])
def test_keys_are_plain(key):
    with pytest.raises(schema.RecordError, match="has characters other than"):
        schema.decode(key, schema.encode(pair(), ["jpg", "png"]))


def shard(**changes: Any) -> dict[str, Any]:
    sound = {"file": "s.tar", "records": 2, "images": 3, "bytes": 1024, "sha256": "ab" * 32}
    return {**sound, **changes}


def test_manifests(tmp_path):
    (tmp_path / "s.tar").write_bytes(b"1" * 1024)
    manifest = schema.Manifest(
        "b", {"x": 1}, {"f": "00"}, (schema.ShardInfo("s.tar", 2, 3, 1024, "ab" * 32),), {"n": 1}
    )
    (tmp_path / schema.MANIFEST).write_text(manifest.to_json())
    assert schema.read_manifest(tmp_path) == manifest
    assert (manifest.records, manifest.images) == (2, 3)
    for change, message in (
        ({"schema_version": 0}, "got 0 at schema_version: build"),
        ({"sources": {"a\nb": 3}}, r"got 3 at sources/a\\nb"),
        ({"shards": [shard(), shard()]}, "got a shard twice at shards"),
        ({"shards": [shard(records=3)]}, "got 3 records in the 1024 bytes of s.tar at shards"),
        ({"shards": [shard(sha256="../../etc/passwd")]}, "at shards/0/sha256"),
        ({"shards": [shard(file="a\n.tar")]}, "at shards/0/file"),
        ({"shards": [shard(file=str(tmp_path / "s.tar"))]}, "at shards/0/file"),
        ({"shards": [shard(file=f"../{tmp_path.name}/s.tar")]}, "at shards/0/file"),
    ):
        changed = {**json.loads(manifest.to_json()), **change}
        (tmp_path / schema.MANIFEST).write_text(json.dumps(changed))
        with pytest.raises(UserError, match=message):
            schema.read_manifest(tmp_path)
    texts = {"{": "expected a manifest", "[]": "at the top", "{}": "got nothing at builder"}
    for text, message in texts.items():
        (tmp_path / schema.MANIFEST).write_text(text)
        with pytest.raises(UserError, match=message):
            schema.read_manifest(tmp_path)
