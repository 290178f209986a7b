import functools

import pytest
import torch

from tests.runs import QUIET, fit, module, weights
from tests.tiny import write_model
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.training.compile_towers import CompileTowers

# What torch says of itself while it compiles.
NOISE = ("ignore::DeprecationWarning", "ignore:.*grad attribute of a Tensor:UserWarning")
pytestmark = [*QUIET, *map(pytest.mark.filterwarnings, NOISE)]


@pytest.mark.slow
def test_compiled_towers_train_alike_under_the_same_names(shards, tmp_path, monkeypatch):
    torch.compiler.reset()
    model = write_model(tmp_path / "model", vision={"layers": 1}, text={"layers": 1})
    compile_module = torch.nn.Module.compile

    def traced(block, **options):  # without a minute of C++, which is torch's own
        compile_module(block, backend="aot_eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", traced)
    runs = []
    for callbacks in ((), (CompileTowers(),)):
        sgd = functools.partial(torch.optim.SGD, lr=0.01)
        made = module(model, FullFineTuning(), [InfoNCE()], optimizer=sgd)
        _, watch = fit(made, shards, tmp_path, steps=2, callbacks=callbacks)
        runs.append((watch.losses, weights(made)))
    (losses, plain), (compiled_losses, compiled) = runs
    assert compiled_losses == pytest.approx(losses, rel=1e-4)
    assert compiled.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-3, atol=1e-5)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0  # something was compiled
