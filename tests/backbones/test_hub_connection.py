"""Without an answer of the hub a model comes from its cache, or is one line at once."""

import huggingface_hub.constants
import pytest
from open_clip import factory

from tests.refusals import refused
from vlmtune.backbones import HFCLIP, TimmImage, hub_connection
from vlmtune.backbones.hub_connection import hub_or_cache
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.model import load
from vlmtune.model.loading import load_export


class Session:
    """Counts the questions, and answers if it has something to answer."""

    def __init__(self, answer=None):
        self.requests, self.answer = 0, answer

    def head(self, url, timeout):
        self.requests += 1
        if self.answer is None:
            raise ConnectionError(f"no route to {url} in {timeout} s")
        return self.answer


@pytest.fixture
def session(hub, tiny_vl, monkeypatch):
    """A hub that does not answer, an empty cache, and no time to wait for a retry.

    Tiny-Hub is built in, but for its tokenizer.
    """
    one, config = Session(), factory._MODEL_CONFIGS["Tiny-VL"]
    text = {**config["text_cfg"], "hf_tokenizer_name": "someone/words"}
    monkeypatch.setitem(factory._MODEL_CONFIGS, "Tiny-Hub", {**config, "text_cfg": text})

    def wait(seconds):
        pytest.fail(f"a retry waits {seconds} s")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_connection, "get_session", lambda: one)
    monkeypatch.setattr(hub_connection, "AGAIN", 10**9)
    monkeypatch.setattr("time.sleep", wait)
    hub_connection._silence.cache_clear()
    yield one
    hub_connection._silence.cache_clear()


HERE = "a folder someone/model here, or that name"
LINE = "^expected {} on the Hugging Face hub, got no answer from https://hugging.* no whole copy in"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: load("someone/model"), HERE),
        (lambda: load("hf-hub:someone/model"), "hf-hub:someone/model"),
        (lambda: load("Tiny-Hub", "random"), "the tokenizer of Tiny-Hub"),
        (lambda: load_export("someone/model"), HERE),
        (lambda: HFCLIP("someone/model"), HERE),
        (lambda: TimmImage("someone/model"), HERE),
    ],
)
def test_a_model_that_is_not_here_is_one_line_at_once(make, name, session):
    with refused(LINE.format(name)):
        make()
    assert session.requests == 1
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_model_of_the_cache_is_loaded(hub, session, model_folder):
    hub("someone/model", model_folder)
    fingerprint = OpenClip(str(model_folder)).fingerprint
    assert session.requests == 0  # a folder needs no hub
    assert OpenClip("hf-hub:someone/model").fingerprint == fingerprint
    assert session.requests == 1


def test_a_hub_that_answers_is_asked_for_the_files(session):
    session.answer = "something"
    for _ in range(2):
        with hub_or_cache("someone/model") as answers:
            assert answers
            assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert session.requests == 1


def test_who_sets_the_hub_offline_is_not_asked_and_other_errors_stay(session, monkeypatch):
    with pytest.raises(ZeroDivisionError), hub_or_cache("someone/model"):
        _ = 1 / 0
    assert session.requests == 1
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub_connection._silence.cache_clear()
    with hub_or_cache("someone/model"):
        pass
    # The model is not in the cache: the error says so, and names the variable.
    with refused("HF_HUB_OFFLINE forbids to ask it.* no whole copy in"):
        load("someone/model")
    assert session.requests == 1
    assert huggingface_hub.constants.HF_HUB_OFFLINE
