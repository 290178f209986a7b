"""An error that a user's plug-in causes names its file, wherever it is raised."""

import re
import sys
from functools import cached_property

import pytest
import torch

from tests.tiny import fit_config
from vlmtune.adapters import DualAdapter
from vlmtune.cli.explain import explain
from vlmtune.cli.main import main
from vlmtune.objectives import Objective
from vlmtune.types import FeatureSpec


class NarrowImages(DualAdapter):
    def __init__(self):
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("pooled")

    def attach(self, backbone):
        super().attach(backbone)
        self.gate = torch.nn.Parameter(torch.ones(backbone.embed_dim - 1))

    def embed_image(self, image):
        return image.values[:, 1:] * self.gate


class NoTensor(Objective):
    def forward(self, scores, targets):
        return 1.0


class WrongLayer(NarrowImages):
    def attach(self, backbone):
        super().attach(backbone)
        self.gate = torch.ones(3)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model.adapter", f"{__name__}.NarrowImages"],
         rf": check NarrowImages in {re.escape(__file__)}; rerun with --debug"),
        (["--model.objectives", f"[{__name__}.NoTensor]"],
         rf"expected Tensor, got float: .*: check NoTensor in {re.escape(__file__)}; rerun"),
        (["--model.adapter", f"{__name__}.WrongLayer"],
         r"cannot assign .*: it comes from line \d+ of " + re.escape(__file__)),
    ],
)  # fmt: skip
def test_a_plugin_whose_result_fails_elsewhere_is_named(
    words, line, tmp_path, model_folder, shards, capsys
):
    config = str(fit_config(tmp_path, model_folder, shards, trainer={"max_steps": 1}))
    main(["fit", "--config", config, *words])
    assert re.search(line, capsys.readouterr().err)


def test_what_a_property_lacks_is_named_not_the_property():
    class Lacking(NoTensor):
        @cached_property
        def fingerprint(self):
            return self.preprocess

    with pytest.raises(AttributeError, match="no attribute 'fingerprint'") as error:
        _ = Lacking().fingerprint
    first = Lacking.fingerprint.func.__code__.co_firstlineno
    assert f"no attribute 'preprocess': it comes from line {first + 2} of" in explain(error.value)


def test_a_plugin_that_is_no_python_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "unfinished.py"
    file.write_text("class Own(:\n")
    assert main(["build", "unfinished.Own", "--out", str(tmp_path / "out")]) == 2
    got = "invalid syntax (unfinished.py, line 1): mend line 1"
    assert capsys.readouterr().err == f"vlmtune: error: expected Python in {file}, got: {got}\n"
    assert "unfinished" not in sys.modules
