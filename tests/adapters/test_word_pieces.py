"""Words that a tokenizer splits: their pieces belong together."""

import pytest
import torch
from torch.nn.functional import normalize

from tests.tiny import write_model
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.adapters.word_pieces import WordPieces
from vlmtune.backbones.open_clip.open_clip import OpenClip

READ = ["a", "cube", "of", "us"]  # "us" is the last piece of "torus", too
TEXT = "a torus of zebrafish"
TOKENS = ["<start>", "a", "tor", "us", "of", "zebra", "fish", "<end>"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model with the tokenizer of CLIP."""
    folder = tmp_path_factory.mktemp("model") / "bpe"
    return OpenClip(str(write_model(folder, vocabulary=False))).eval()


@pytest.fixture
def adapter(model):
    torch.manual_seed(0)
    adapter = GroundedWords(heads=2, hidden_words=0.3, meaning_weight=0.7)
    adapter.attach(model)
    return adapter.eval()


@pytest.mark.parametrize(
    ("tokens", "last", "alone"),
    [
        (["<s>", "a</w>", "tor", "us</w>", ",</w>", "cube</w>"], "010111", "010011"),
        (["<s>", "▁a", "▁tor", "us", ",", "▁cube"], "010111", "010011"),
        (["<s>", "a", "Ġtor", "us", ",", "Ġcube"], "010111", "010011"),
        (["<s>", "a", "tor", "##us", ",", "cube"], "010111", "010011"),
        (["<s>", "a", "tor", "us", ",", "cube"], "011111", "011111"),
    ],
)
def test_each_kind_of_tokenizer_marks_its_pieces(tokens, last, alone):
    vocabulary = {token: number for number, token in enumerate(tokens)}
    ids = torch.arange(len(tokens))[None]
    is_word = ids > 0
    words = WordPieces(vocabulary, len(tokens))(ids, is_word)
    assert "".join(str(int(flag)) for flag in words.is_last[0]) == last
    assert "".join(str(int(flag)) for flag in words.is_alone[0]) == alone


@torch.no_grad()
def test_an_unread_word_in_pieces_counts_once_by_the_meaning_of_the_whole_word(adapter, model):
    for word in READ:
        adapter.unread.read[model.text_tower.words([word]).word_ids[0, 1]] = 0.1
    text = model.encode_text([TEXT, "a cube"], adapter.text_input)
    hidden, meanings = adapter.unread(text)
    assert [TOKENS[i] for i in hidden[0].nonzero()] == ["tor", "us", "zebra", "fish"]
    assert not hidden[1].any()
    embedded = normalize(model.model.encode_text(model.tokenize(["torus", "zebrafish", ""])), dim=1)
    said = adapter.unread.scale * (embedded[:2] - embedded[2])
    torch.testing.assert_close(meanings[0, [3, 6]], said, rtol=1e-4, atol=1e-5)
    others = [i for i in range(len(TOKENS)) if i not in (3, 6)]
    assert not meanings[0, others].any()


def test_training_hides_no_single_piece(adapter, model):
    adapter.train()
    adapter.unread.rate = 1e3
    text = model.encode_text([TEXT] * 80, adapter.text_input)
    hidden, _ = adapter.unread(text)
    assert [TOKENS[i] for i in hidden[0].nonzero()] == ["a", "of"]
