"""`vlmtune.load` of a hub id, from a cache laid out as the hub's; no network."""

import json

import huggingface_hub
from huggingface_hub.errors import RepositoryNotFoundError

import vlmtune
from tests.refusals import refused


def test_a_repository_without_an_export_gets_advice(tmp_path, hub):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({}))
    hub("someone/other", tmp_path / "other")
    with refused("'someone/other' without adapter_config.json, config.json with a model_type, or"):
        vlmtune.load("someone/other")


def test_an_unavailable_repository_is_one_line(hub, monkeypatch):
    with refused("check the name, the revision and the network"):
        vlmtune.load("someone/absent")

    def refuse(*_, **__):
        raise RepositoryNotFoundError("404\nnot found", response=FakeResponse())

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with refused("check the name, the revision and the network"):
        vlmtune.load("someone/private")
    for name in ("no-such-folder", "a/b/c"):
        with refused(f"hf-hub:org/repo or a folder .*, got '{name}'"):
            vlmtune.load(name)


def test_a_folder_of_the_project_is_no_hub_id(tmp_path, monkeypatch, pictures):
    """Wherever the command is run: backbones are searched beside the package, too."""
    monkeypatch.chdir(tmp_path)
    assert vlmtune.load("checkpoints/scenes-clip").score(pictures, ["red cube"]).shape == (3, 1)


class FakeResponse:
    headers: dict[str, str] = {}  # noqa: RUF012
    status_code = 404
    request = None
