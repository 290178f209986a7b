"""Exports on the hub, with a stand-in for its API; no network."""

import json
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest

import vlmtune
from tests.backbones.hf_models import write_clip
from tests.conftest import REVISION
from tests.model.checkpoints import checkpoint
from tests.refusals import refused
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.main import run_command
from vlmtune.export import save_export

TEXTS = ["a red cube", "a blue sphere"]


@pytest.fixture
def api(monkeypatch, tmp_path, hub):
    """Stands in for the hub's API: keeps the calls, and puts what is uploaded into the cache."""
    calls = []

    class Api:
        def create_repo(self, repository, **options):
            calls.append((repository, options))

        def upload_folder(self, repo_id, folder_path, allow_patterns, commit_message):
            sent = tmp_path / "sent"
            sent.mkdir()
            for path in folder_path.iterdir():
                assert path.name in allow_patterns
                shutil.copy(path, sent)
            hub(repo_id, sent)
            return SimpleNamespace(oid="c0ffee")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return calls


@pytest.fixture
def export(tmp_path, model_folder):
    backbone, adapter = OpenClip(str(model_folder)), LinearProbe()
    adapter.attach(backbone)
    path = checkpoint(tmp_path / "a.ckpt", backbone, adapter)
    return ["export", str(path), "--out", str(tmp_path / "mine")]


@pytest.mark.parametrize("public", [False, True])
def test_an_export_is_uploaded_and_loads_by_its_id(api, export, pictures, tmp_path, public, capsys):
    options = ["--push-to-hub", "someone/mine", "--licence", "apache-2.0"]
    assert run_command([*export, *options, *(["--public"] if public else [])]) == 0
    assert api == [("someone/mine", {"private": not public, "exist_ok": True})]
    assert "someone/mine: commit c0ffee; vlmtune.load('someone/mine')" in capsys.readouterr().out
    want = vlmtune.load(tmp_path / "mine", device="cpu").score(pictures, TEXTS)
    assert vlmtune.load("someone/mine", device="cpu").score(pictures, TEXTS).equal(want)
    assert {file.name for file in (tmp_path / "sent").iterdir()} == {
        "README.md",
        "adapter.safetensors",
        "adapter_config.json",
    }
    card = huggingface_hub.ModelCard.load(tmp_path / "mine/README.md")
    assert card.data.license == "apache-2.0"


def test_an_export_of_an_export_of_the_hub_keeps_its_alpha_and_licence(api, export, tmp_path):
    options = ["--alpha", "0.5", "--licence", "apache-2.0", "--push-to-hub", "someone/mine"]
    assert run_command([*export, *options]) == 0
    larger = tmp_path / "larger"
    again = ["export", "--model", "someone/mine", "--image-size", "48", "--out", str(larger)]
    assert run_command(again) == 0
    written = json.loads((larger / "adapter_config.json").read_text())
    assert (written["alpha"], written["licence"]) == (0.5, "apache-2.0")
    assert "alpha" not in written["provenance"]


def test_a_revision_pins_an_export(api, export, pictures, tmp_path):
    assert run_command([*export, "--push-to-hub", "someone/mine"]) == 0
    (tmp_path / "hub/models--someone--mine/refs/main").write_text("f" * 40)  # main has moved on
    with refused("a folder someone/mine here.* no whole copy in"):
        vlmtune.load("someone/mine", device="cpu")
    want = vlmtune.load(tmp_path / "mine", device="cpu").score(pictures, TEXTS)
    pinned = vlmtune.load("someone/mine", revision=REVISION, device="cpu")
    assert pinned.score(pictures, TEXTS).equal(want)
    with refused("a folder someone/mine here.* no whole copy in"):
        vlmtune.load("someone/mine", revision="0" * 40)
    with refused("hub id org/name with a revision, got .*mine'"):
        vlmtune.load(tmp_path / "mine", revision=REVISION)


def test_an_export_loads_the_recorded_revision_of_its_base_model(hub, tmp_path, model_folder):
    hub("someone/clip", write_clip(tmp_path / "clip"))
    base = vlmtune.load("someone/clip", revision=REVISION, device="cpu").backbone
    assert base.spec()["init_args"]["revision"] == REVISION
    adapter = LinearProbe()
    adapter.attach(base)
    save_export(tmp_path / "mine", base, adapter, provenance={})
    card = huggingface_hub.ModelCard.load(tmp_path / "mine/README.md")
    assert card.data.base_model == "someone/clip"
    (tmp_path / "hub/models--someone--clip/refs/main").write_text("f" * 40)  # main has moved on
    loaded = vlmtune.load(tmp_path / "mine", device="cpu").backbone
    assert loaded.spec()["init_args"] == base.spec()["init_args"]
    with refused("a folder someone/clip here.* no whole copy in"):
        vlmtune.load("someone/clip", device="cpu")
    hub("someone/tiny", model_folder)
    with refused("someone/tiny of open_clip, which only loads main branches"):
        vlmtune.load("someone/tiny", revision=REVISION)


def test_nothing_is_uploaded_unless_asked_or_where_options_do_not_fit(api, export, tmp_path):
    assert run_command(export) == 0
    assert api == []
    assert "license" not in (tmp_path / "mine/README.md").read_text().split("---")[1]
    with refused("repository owner/name to push to, got 'mine'"):
        run_command([*export, "--push-to-hub", "mine"])
    with refused("expected --out FOLDER with .*--push-to-hub"):
        run_command([*export[:2], "--push-to-hub", "someone/mine"])
    with refused("expected --out FOLDER with --report, .* got none: add it, or leave these out"):
        run_command([*export[:2], "--merged", "merged", "--report", "report.json"])


def test_a_refusal_of_the_hub_is_one_line(export, monkeypatch):
    class Api:
        def create_repo(self, *_, **__):
            raise PermissionError("401 Unauthorized\nlog in")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    with refused("push .* to someone/mine, got PermissionError: 401 Unauthorized log in: log in"):
        run_command([*export, "--push-to-hub", "someone/mine"])
