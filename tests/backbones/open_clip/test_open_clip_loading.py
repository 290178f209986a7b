import io
import json

import pytest
from open_clip import factory, pretrained

from tests.refusals import refused
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

TEXTS = ["a red cube left of the blue sphere", "dog"]
POOLED = FeatureSpec("pooled")


def embeddings(backbone):
    return backbone.encode_text(TEXTS, POOLED).values


@pytest.mark.parametrize(
    ("file", "message"),
    [  # there are 15 token embeddings, and CLIP has 49,408 tokens
        ("vocabulary.txt", r"expected vocabulary\.txt with 12 words .*15 token"),
        ("open_clip_model.safetensors", "Required pretrained weights"),  # never made up
    ],
)
def test_files_that_are_not_there_are_asked_for(folder, hub, file, message):
    path = folder()
    (path / file).unlink()
    hub("someone/tiny", path)
    for name in (str(path), "hf-hub:someone/tiny"):
        with refused(message):
            OpenClip(name)


@pytest.fixture
def tagged(folder, hub, monkeypatch):
    """Two built-in names whose tags lead to a hub repository: plain, and with QuickGELU."""
    path = folder(vocabulary=False, quick_gelu=True)
    hub("someone/tagged", path)
    model = json.loads((path / "open_clip_config.json").read_text())["model_cfg"]
    tag = {"hf_hub": "someone/tagged/", "quick_gelu": True, "mean": (0.1, 0.2, 0.3)}
    for name, quick in (("Tiny-VL", False), ("Tiny-VL-quickgelu", True)):
        monkeypatch.setitem(factory._MODEL_CONFIGS, name, model | {"quick_gelu": quick})
        monkeypatch.setitem(pretrained._PRETRAINED, name, {"openai": tag, "of_2020": tag})
    return path


def test_a_tag_loads_from_the_cache_without_a_network_or_is_refused(tagged, monkeypatch):
    want = OpenClip(str(tagged))
    wanted = want.model.state_dict()
    for tag in ("openai", "of_2020", "OF-2020"):
        got = OpenClip("Tiny-VL-quickgelu", tag)
        assert embeddings(got).equal(embeddings(want))
        state = got.model.state_dict()
        assert state.keys() == wanted.keys()
        assert all(state[name].equal(wanted[name]) for name in wanted)
        assert tuple(got.preprocessing["mean"]) == (0.1, 0.2, 0.3)  # that of the tag
        assert got.spec()["init_args"]["pretrained"] == tag
    assert not embeddings(OpenClip("Tiny-VL-quickgelu", "random")).equal(embeddings(want))
    with refused("use model 'Tiny-VL-quickgelu'"):
        OpenClip("Tiny-VL", "of_2020")
    monkeypatch.setitem(pretrained._PRETRAINED, "Tiny-VL", {"gone": {"hf_hub": "someone/nothing/"}})
    with refused("Tiny-VL with pretrained='gone'.* no whole copy in"):
        OpenClip("Tiny-VL", "gone")


THEIRS = {
    "a tower": {"hf_model_name": "theirs"},
    "a tokenizer": {"hf_tokenizer_name": "any"},
    "a tokenizer by its options": {
        "hf_tokenizer_name": "any",
        "tokenizer_kwargs": {"trust_remote_code": True},
    },
}


@pytest.mark.parametrize("text", THEIRS.values(), ids=THEIRS)
def test_code_of_the_author_never_runs(text, folder, tmp_path, monkeypatch):
    path, theirs = folder(vocabulary=False), tmp_path / "theirs"
    theirs.mkdir()
    auto = {"auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}, "tokenizer_class": "Theirs"}
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}
    for place in (path, theirs):
        (place / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        (place / "config.json").write_text(json.dumps(config))
        (place / "tokenizer_config.json").write_text(json.dumps(auto))
    made = json.loads((path / "open_clip_config.json").read_text())
    made["model_cfg"]["text_cfg"] |= text
    (path / "open_clip_config.json").write_text(json.dumps(made))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    with refused("Python code of its author, which vlmtune never runs"):
        OpenClip(str(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("layers", 10**7, "layers of at most"),
        # As some models may have, and these weights have not.
        ("context_length", 200_000, "config that fits the weights"),
    ],
)
def test_sizes_beyond_any_model_are_an_error(name, size, message, folder):
    path = folder()
    config = json.loads((path / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"][name] = size
    (path / "open_clip_config.json").write_text(json.dumps(config))
    with refused(message):
        OpenClip(str(path))
