from pathlib import Path

import pytest
import torch

from tests.faulty_server import FaultyServer
from tests.forks import command, status
from tests.tiny import fit_config, plugin
from vlmtune.cli.main import main
from vlmtune.data.schema import read_manifest
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.errors import UserError


def names(shards: Path) -> list[str]:
    return [shard.file for shard in read_manifest(shards).shards]


def config(tmp_path: Path, model: Path, name: str, path: str) -> Path:
    shards = plugin("data.shards.ShardSet", path=path, cache=str(tmp_path / "cache"))
    data = {"train": [shards], "num_workers": 2, "seed": 3}
    return fit_config(tmp_path / name, model, Path(), data=data, trainer={"max_steps": 5})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.rglob("*.ckpt")
    return torch.load(file, weights_only=True)["state_dict"]


def texts(folder: Path) -> str:
    """All that a run wrote, as text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("latin-1") for path in files)


@pytest.mark.slow
def test_it_trains_as_on_the_local_folder(server, shards, model_folder, tmp_path, monkeypatch):
    server.folder = shards
    for name, fault in zip(names(shards), ("500", "lie", "truncate"), strict=True):
        server.faults[name] = [fault]
    host, printed = server.url.removeprefix("http://"), ""
    monkeypatch.setenv("PASSWORD", "pa55%2Fword")
    for name, path in {"local": str(shards), "remote": f"http://me:$PASSWORD@{host}"}.items():
        file = config(tmp_path, model_folder, name, path)
        monkeypatch.chdir(file.parent)
        log = tmp_path / f"{name}.txt"
        assert status(command("fit", "--config", str(file), log=log)) == 0, log.read_text()
        printed += log.read_text()
    local, remote = weights(tmp_path / "local"), weights(tmp_path / "remote")
    assert local.keys() == remote.keys()
    assert all(value.equal(remote[name]) for name, value in local.items())
    # Each shard came once and, after its fault, once more, for both workers and all epochs.
    assert server.asked == {"manifest.json": 1, **dict.fromkeys(names(shards), 2)}
    assert set(server.authorizations) == {"Basic bWU6cGE1NS93b3Jk"}  # me:pa55/word
    written = texts(tmp_path / "remote") + texts(tmp_path / "cache") + printed
    assert "pa55" not in written
    assert "bWU6" not in written


def stream(
    server: FaultyServer, tmp_path: Path, cache_bytes: int = 10**9, **options
) -> GroupStream:
    data = ShardSet(server.url, cache=str(tmp_path / "cache"), cache_bytes=cache_bytes)
    return GroupStream((data,), 2, seed=5, **options)


def keys(stream: GroupStream) -> list[str]:
    return [
        group.key for epoch in range(3) for batch, _ in stream.batches(epoch) for group in batch
    ]


@pytest.mark.parametrize(("window", "train"), [(0, True), (4, True), (10_000, True), (4, False)])
def test_each_shard_is_downloaded_once_for_all_epochs(server, shards, tmp_path, window, train):
    server.folder = shards
    local = GroupStream((ShardSet(str(shards)),), 2, seed=5, window=window, train=train)
    remote = stream(server, tmp_path, window=window, train=train)
    assert keys(remote) == keys(local)
    assert server.asked == {"manifest.json": 1, **dict.fromkeys(names(shards), 1)}


def test_a_cache_of_two_shards_suffices_for_a_small_window(server, shards, tmp_path, caplog):
    server.folder = shards
    largest = max(shard.bytes for shard in read_manifest(shards).shards)
    local = GroupStream((ShardSet(str(shards)),), 2, seed=5, window=0)
    remote = stream(server, tmp_path, 2 * largest, window=0)
    assert keys(remote) == keys(local)
    folder = remote.sets[0].remote
    assert folder is not None
    folder.free()  # a download may still go on
    tars = [path for path in (tmp_path / "cache").iterdir() if len(path.name) == 64]
    assert sum(path.stat().st_size for path in tars) <= 2 * largest
    assert sum(server.asked.values()) > 4  # a shard was removed and came back
    assert not caplog.messages


def test_a_shard_that_cannot_be_read_is_one_damaged_line(server, shards, tmp_path):
    server.folder = shards
    name = names(shards)[1]
    server.faults[name] = ["403"] * 99
    line = f"{server.url}/{name} - the tar cannot be opened: cannot be read: the server answered"
    lines = [x for _, new in stream(server, tmp_path, max_damaged=0.5).batches() for x in new]
    assert lines == [f"{line} with status 403"]
    with pytest.raises(UserError, match=r"^expected at most 1 damaged of 12 records, got 2 \(http"):
        list(stream(server, tmp_path).batches())


def test_a_password_in_the_config_is_refused_before_anything_is_written(
    tmp_path, model_folder, monkeypatch, capsys
):
    url = "https://reader:pa55word@127.0.0.1/shards"
    file = config(tmp_path, model_folder, "refused", url)
    assert main(["fit", "--config", str(file)]) == 2
    printed = "".join(capsys.readouterr())
    assert "expected a URL without a password or a query string" in printed
    assert "pa55word" not in printed
    assert [path.name for path in file.parent.iterdir()] == ["fit.yaml"]
