"""`--architecture`: a weights file of open_clip on the command line."""

import hashlib
import json

import pytest
import torch

from tests.refusals import command_refused as refused
from tests.tiny import cola_plugin, write_cola
from vlmtune.cli.main import main

QUICK = "Tiny-VL-quickgelu"


def test_a_weights_file_is_measured_and_named(tiny_vl, tmp_path, capsys):
    file, out = tmp_path / "negclip.pt", tmp_path / "out"
    torch.save({"epoch": 5, "state_dict": {f"module.{k}": v for k, v in tiny_vl.items()}}, file)
    benchmark = tmp_path / "tiny.yaml"
    benchmark.write_text(json.dumps(cola_plugin(write_cola(tmp_path / "cola"), name="tiny")))
    arguments = ["evaluate", "--model", file, "--benchmarks", benchmark, "--out", out]
    arguments = [str(x) for x in [*arguments, "--device", "cpu"]]
    assert main([*arguments, "--architecture", QUICK]) == 0
    assert "warning" not in capsys.readouterr().err
    report = json.loads((out / "report.json").read_text())
    origin = report["provenance"]
    assert report["name"] == "negclip"
    assert (origin["backbone"], origin["adapter"]) == (f"{QUICK} (negclip.pt)", "zero-shot")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    weights = {"file": "negclip.pt", "sha256": sha256, "architecture": QUICK}
    assert origin["config"]["weights"] == weights
    assert origin["model"]["backbone"]["init_args"]["model"] == QUICK

    lines = refused(capsys, arguments, "expected the open_clip architecture", "ViT-B-32-quickgelu:")
    assert len(lines) == 1


def test_an_index_keeps_the_architecture_of_its_weights(tiny_vl, tmp_path, pictures, capsys):
    pytest.importorskip("faiss")
    file, out = tmp_path / "negclip.pt", tmp_path / "index"
    torch.save(tiny_vl, file)
    words = ["index", *pictures, "--model", file, "--architecture", QUICK, "--out", out]
    assert main([str(x) for x in [*words, "--device", "cpu"]]) == 0
    assert json.loads((out / "index.json").read_text())["model"]["architecture"] == QUICK
    assert main(["search", str(out), "a red cube", "--device", "cpu"]) == 0
    assert "of 3 images" in capsys.readouterr().out
