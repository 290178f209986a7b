import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.refusals import command_refused
from vlmtune.benchmarks.aro_order import AroOrder
from vlmtune.benchmarks.aro_shuffles import perturb, read_shuffles
from vlmtune.cli.main import main
from vlmtune.language.tagger import LexiconTagger

CAPTIONS = ["A brown dog chases a black cat.", "Two men ride old horses on the beach."]


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    path = tmp_path / "captions.json"
    path.write_text(json.dumps([{"image": "0.jpg", "caption": CAPTIONS}]))
    return path


def test_what_is_written_is_what_the_benchmark_reads(annotations, capsys):
    out = annotations.with_name("shuffles.json")
    arguments = ["shuffles", "--annotations", str(annotations), "--out", str(out), "--seed", "7"]
    assert main(arguments) == 0
    assert "four shuffles of 2 captions, seed 7" in capsys.readouterr().out
    found = read_shuffles(out, annotations, 2)
    want = [perturb(caption, LexiconTagger(), 7) for caption in CAPTIONS]
    assert [tuple(four) for four in found] == want
    Image.new("RGB", (4, 4)).save(annotations.with_name("0.jpg"))
    benchmark = AroOrder(str(annotations), str(annotations.parent), str(out))
    benchmark.load()
    assert len(benchmark.items.images) == 1
    before = out.read_bytes()
    assert main(arguments) == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--annotations": "none.json"}, "expected a JSON list of"),
        ({"--out": "captions.json/shuffles.json"}, "expected to write"),
        ({"--spacy": "xx_no_such_model"}, "install both or use the LexiconTagger"),
        ({"--seed": "many"}, "--seed"),
    ],
)
def test_what_is_wrong_is_one_line(annotations, capsys, monkeypatch, change, said):
    monkeypatch.chdir(annotations.parent)
    monkeypatch.setitem(sys.modules, "spacy", None)
    given = {"--annotations": "captions.json", "--out": "shuffles.json", **change}
    words = [part for pair in given.items() for part in pair]
    (_,) = command_refused(capsys, ["shuffles", *words], said)
    assert sorted(path.name for path in annotations.parent.iterdir()) == ["captions.json"]
