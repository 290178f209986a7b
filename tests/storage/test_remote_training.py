"""`vlmtune fit` on shards of a server on loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.tiny import fit_config, plugin
from vlmtune.data.schema import read_manifest

PASSWORD = "pa55/word"  # as it stands in a URL: pa55%2Fword


@pytest.fixture
def fit(tmp_path, model_folder):
    """Returns a function that trains in another process and gives what that printed."""

    def run(name: str, path: str, workers: int = 2, **options) -> subprocess.CompletedProcess[str]:
        cache = str(tmp_path / "cache")
        shards = plugin("data.shards.ShardSet", path=path, cache=cache)
        data = {"train": [shards], "num_workers": workers, "seed": 3, **options}
        folder = tmp_path / name
        config = fit_config(folder, model_folder, Path(), data=data, trainer={"max_steps": 5})
        command = [sys.executable, "-m", "vlmtune", "fit", "--config", str(config)]
        environment = {**os.environ, "PASSWORD": PASSWORD.replace("/", "%2F")}
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )

    return run


def weights(folder: Path) -> dict:
    (file,) = folder.rglob("*.ckpt")
    return torch.load(file, weights_only=True)["state_dict"]


def texts(folder: Path) -> str:
    """All that a run wrote, as text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("latin-1") for path in files)


def test_it_trains_as_on_the_local_folder(server, shards, fit, tmp_path):
    server.folder = shards
    local = fit("local", str(shards))
    assert local.returncode == 0, local.stderr
    names = [shard.file for shard in read_manifest(shards).shards]
    for name, fault in zip(names, ("500", "lie", "truncate"), strict=True):
        server.faults[name] = [fault]
    host = server.url.removeprefix("http://")
    remote = fit("remote", f"http://reader:$PASSWORD@{host}")
    assert remote.returncode == 0, remote.stderr
    assert weights(tmp_path / "remote").keys() == weights(tmp_path / "local").keys()
    for name, value in weights(tmp_path / "local").items():
        assert value.equal(weights(tmp_path / "remote")[name])
    # Each shard came once and, after its fault, once more, for both workers and all epochs.
    assert server.asked == {"manifest.json": 1, **dict.fromkeys(names, 2)}
    assert "Basic cmVhZGVyOnBhNTUvd29yZA==" in server.authorizations  # reader:pa55/word
    written = texts(tmp_path / "remote") + texts(tmp_path / "cache")
    for secret in ("pa55", "cmVhZGVy"):
        assert secret not in written + remote.stdout + remote.stderr
    assert "$PASSWORD@" in (tmp_path / "remote/fit.yaml").read_text()


def test_a_shard_that_cannot_be_read_is_one_damaged_line(server, shards, fit, tmp_path):
    server.folder = shards
    name = read_manifest(shards).shards[1].file
    server.faults[name] = ["403"] * 99
    strict = fit("strict", server.url, 0)
    assert strict.returncode == 1
    (line,) = [line for line in strict.stderr.splitlines() if "damaged" in line]
    assert f"{server.url}/{name} - the tar cannot be opened: cannot be read: the server" in line
    lenient = fit("lenient", server.url, 0, max_damaged=0.5)
    assert lenient.returncode == 0, lenient.stderr
    (line,) = [line for line in lenient.stderr.splitlines() if name in line]
    assert f"{server.url}/{name} - the tar cannot be opened" in line


def test_a_password_in_the_config_is_refused_before_anything_is_written(fit, tmp_path):
    refused = fit("refused", "https://reader:pa55word@127.0.0.1/shards")
    assert refused.returncode == 1
    assert "expected a URL without a password or a query string" in refused.stderr
    assert "pa55word" not in refused.stdout + refused.stderr
    assert [path.name for path in (tmp_path / "refused").iterdir()] == ["fit.yaml"]
