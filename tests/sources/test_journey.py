"""From an empty folder to a report: `vlmtune download`, then `vlmtune evaluate`.

The sources are those that come with vlmtune, but for sizes and checksums: the mirror has files of
the same layouts with few items.
"""

import io
import json
import random
import signal
import tarfile
import time
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer
from tests.forks import command, status
from tests.sources.conftest import content, publish, redeclare, zipped
from tests.tiny import write_model
from vlmtune.benchmarks.aro import Aro
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.benchmarks.crepe_productivity import CrepeProductivity
from vlmtune.benchmarks.crepe_systematicity import CrepeSystematicity
from vlmtune.benchmarks.pug_spar import PugSpar
from vlmtune.benchmarks.sugar_crepe import SugarCrepe
from vlmtune.cli.main import main
from vlmtune.sources.order import orders
from vlmtune.sources.source import SourceFile, sources

NAMES = ["cola_multi", "sugar_crepe", "aro", "crepe", "pug_spar"]
SUBSETS = (
    "add_att",
    "add_obj",
    "replace_att",
    "replace_obj",
    "replace_rel",
    "swap_att",
    "swap_obj",
)


def file_of(name: str, start: str) -> SourceFile:
    """The file of a source whose path or member pattern starts so."""
    return next(
        file for file in sources()[name].files if f"{file.path}/{file.members}".startswith(start)
    )


def publish_zip(server: FaultyServer, file: SourceFile, folder: Path, below: str) -> None:
    """Publishes the files of a folder as members below `below`."""
    members = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            members[f"{below}/{path.relative_to(folder)}"] = path.read_bytes()
    publish(server, file.urls[0], zipped(members))


def publish_all(server: FaultyServer) -> None:
    """Puts the files of all benchmarks of the journey onto the mirror."""
    made = Path("made")
    for order in orders(NAMES):
        redeclare(order.name)
    _publish_cola(server, made / "cola")
    _publish_sugar_crepe(server, made / "sugar")
    _publish_aro(server, made / "aro")
    _publish_crepe(server, made)
    PugSpar.fixture(made / "spar")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as written:
        written.add(made / "spar", "PUG_SPAR")
    publish(server, sources()["pug_spar"].files[0].urls[0], archive.getvalue())


def _publish_cola(server: FaultyServer, made: Path) -> None:
    ColaMulti.fixture(made)
    file = file_of("cola_items", "cola/COLA_multi")
    publish(server, file.urls[0], made / "cola_multi.json")
    images = sources()["cola_items"].images[0]
    for path in made.glob("*.png"):
        publish(server, images.addresses(Path(path.name))[0], path)


def _publish_aro(server: FaultyServer, made: Path) -> None:
    Aro.fixture(made)
    for task in ("relation", "attribution"):
        file = file_of("aro", f"aro/visual_genome_{task}")
        publish(server, file.urls[0], made / "visual_genome_relation.json")
    publish_zip(server, file_of("aro", "aro/images"), made / "images", "images")


def _publish_sugar_crepe(server: FaultyServer, made: Path) -> None:
    SugarCrepe.fixture(made)
    for subset in SUBSETS:
        file = file_of("sugar_crepe", f"sugar_crepe/{subset}")
        publish(server, file.urls[0], made / "add_att.json")
    images = sources()["sugar_crepe"].images[0]
    for path in made.glob("*.jpg"):
        publish(server, images.addresses(Path(path.name))[0], path)


def _publish_crepe(server: FaultyServer, made: Path) -> None:
    CrepeProductivity.fixture(made / "prod")
    for kind in ("atom", "swap", "negate"):
        folder = made / "csv" / kind
        folder.mkdir(parents=True)
        # One of the two files of a kind has no rows.
        texts = [path.read_text() for path in (made / "prod" / kind).glob("*.csv")]
        rows = max(texts, key=len)
        for n in range(4, 13):
            (folder / f"prod_vg_hard_negs_{kind}_complexity_{n}.csv").write_text(rows)
    publish_zip(server, file_of("crepe", "crepe/prod"), made / "csv", "prod_hard_negatives")
    CrepeSystematicity.fixture(made / "syst")
    syst = made / "syst-csv"
    syst.mkdir()
    for path in (made / "syst").glob("*.csv"):
        (syst / path.name).write_bytes(path.read_bytes())
    publish_zip(server, file_of("crepe", "crepe/syst"), syst, "syst_hard_negatives")
    for folder in ("VG_100K", "VG_100K_2"):
        file = file_of("crepe", f"visual_genome/{folder}/")
        publish_zip(server, file, made / "prod" / folder, folder)


DOWNLOAD = ("download", *NAMES, "--accept", "pug_spar")


@pytest.mark.slow
def test_two_commands_lead_from_an_empty_folder_to_a_report(mirror, tmp_path, capsys):
    publish_all(mirror)
    model = str(write_model(tmp_path / "model", vocabulary=False))
    for words in (DOWNLOAD, ("evaluate", "--model", model, "--benchmarks", *NAMES)):
        assert main([*words]) == 0, capsys.readouterr().err
    (report,) = Path("runs/evaluate").glob("*/report.json")
    measured = json.loads(report.read_text())
    assert len(measured["results"]) >= len(NAMES)


@pytest.mark.slow
def test_a_download_killed_at_any_moment_ends_in_the_same_bytes(mirror, tmp_path, monkeypatch):
    publish_all(mirror)
    mirror.pause = 0.05
    log = tmp_path / "log.txt"
    began = time.monotonic()
    assert status(command(*DOWNLOAD, "--data-root", "whole", log=log)) == 0, log.read_text()
    whole = time.monotonic() - began
    draw, killed = random.Random(0), 0
    for number in range(10):
        monkeypatch.setenv("VLMTUNE_DATA", f"data{number % 3}")
        started = command(*DOWNLOAD, log=log)
        if status(started, draw.uniform(0.0, whole)) is None:
            started.kill()
            killed += status(started) == -signal.SIGKILL
    assert killed > 0
    for number in range(3):
        root = f"data{number}"
        assert status(command(*DOWNLOAD, "--data-root", root, log=log)) == 0, log.read_text()
        assert content(Path(root)) == content(Path("whole"))
