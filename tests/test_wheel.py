"""The wheel has everything that the documents show: it works in an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
LAST = "training grounded words"  # the step of the quickstart at which the test stops


@pytest.fixture(scope="module")
def vlmtune(tmp_path_factory):
    """Installs the wheel into a fresh environment; returns a function that starts its `vlmtune`."""
    folder = tmp_path_factory.mktemp("installed")
    python = folder / "env/bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    venv.create(folder / "env", symlinks=True)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    # What vlmtune needs comes from this environment, behind what was just installed.
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "empty").mkdir()
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"COLUMNS": "100"}

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [folder / "env/bin/vlmtune", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=folder / "empty", env=variables, **pipes)

    return start


def test_help_names_the_commands_and_the_configs_are_in_the_package(vlmtune):
    assert "quickstart" in vlmtune("--help").communicate(timeout=300)[0]
    configs = Path(vlmtune("--configs").communicate(timeout=300)[0].strip())
    assert configs.parent.name == "vlmtune"
    assert not configs.is_relative_to(ROOT)
    assert (configs.parent / "py.typed").is_file()  # type checkers read the annotations
    shipped = {path.relative_to(configs) for path in configs.rglob("*.yaml")}
    paths = ROOT.glob("configs/**/*.yaml")
    assert shipped == {path.relative_to(ROOT / "configs") for path in paths}


def test_a_benchmark_is_named_by_its_stem(vlmtune):
    model = ("--model", "checkpoints/scenes-clip")
    process = vlmtune("evaluate", *model, "--benchmarks", "cola_multi", "--out", "report")
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 2, output
    assert "data/cola/COLA_multiobjects_matching_benchmark.json" in output.splitlines()[-1]
    config = "configs/experiments/quickstart/mm_adapter.yaml"
    said, _ = vlmtune("fit", "--config", config).communicate(timeout=300)
    assert "runs/quickstart/queries" in said


def test_the_quickstart_begins(vlmtune):
    lines = []
    with vlmtune("quickstart", "--size", "tiny") as process:
        for line in process.stdout:
            lines.append(line)
            if LAST in line:
                process.terminate()
                break
    assert LAST in lines[-1], "".join(lines)
    assert any("frozen CLIP" in line for line in lines)
