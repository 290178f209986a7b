import functools
import gzip
import hashlib
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.refusals import refused
from tests.sources.conftest import (
    HOST,
    SOON,
    content,
    declare,
    declare_toy,
    picture,
    publish,
    rows,
    single_images,
    tarred,
    zipped,
)
from tests.tiny import write_model
from vlmtune.cli.main import main
from vlmtune.cli.plugins import make_benchmarks
from vlmtune.config import DATA, in_data_root
from vlmtune.data.shards import ShardSet
from vlmtune.sources import downloads
from vlmtune.sources.conversions.parquet import write_class_folders
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.order import default_reader, orders

DATA_FOLDER = Path("data")
PNG = b"\x89PNG"
# The checksums of the content "new".
NEW = (
    f"git:{hashlib.sha1(b'blob 3' + bytes(1) + b'new', usedforsecurity=False).hexdigest()}",
    f"sha256:{hashlib.sha256(b'new').hexdigest()}",
)
ARCHIVE = "https://host.example/set.archive"
NEWER = "https://host.example/newer.archive"


def download(*names, whole=False, **options):
    downloads.download(orders(names, whole), patience=SOON, **options)


def provide(server, packed, address=ARCHIVE, name="set", **facts):
    """Publishes an archive, and declares the source that it is the only file of."""
    publish(server, address, packed)
    declare(name, files=[{"url": address, "path": name, "unpack": "zip"} | facts])


def test_a_benchmark_reads_what_came(mirror):
    declare_toy(mirror)
    download("toy")
    benchmark = default_reader("toy")
    benchmark.load()
    assert len(benchmark.items.images) == 3
    recorded = json.loads(Path("data/licences.json").read_text())
    assert recorded["toy"]["images"] == "CC0 1.0"
    # What is here is not asked for again, and a file that lost bytes comes again.
    asked, before = mirror.asked.total(), content()
    download("toy")
    assert mirror.asked.total() == asked
    Path("data/toy/add_att.json").write_text("{")
    Path("data/toy/images/000000000001.jpg").write_bytes(b"")
    download("toy")
    assert content() == before


def test_images_that_do_not_come_are_counted_and_the_rest_is_kept(mirror):
    declare_toy(mirror)
    (mirror.folder / "host.example/toy/images/000000000001.jpg").unlink()
    publish(mirror, f"{HOST}/images/000000000002.jpg", b"no image at all")
    with refused("2 of 3 images of toy, first 00000000000.*run it again"):
        download("toy")
    assert sorted(content()) == ["toy/add_att.json", "toy/images/000000000000.jpg"]


def test_a_hopeless_server_is_not_asked_for_every_image(mirror, monkeypatch):
    monkeypatch.setattr(downloads, "HOPELESS", 4)
    count = 40
    declare_toy(mirror, count=1)
    publish(mirror, f"{HOST}/add_att.json", rows(count))
    (mirror.folder / "host.example/toy/images/000000000000.jpg").unlink()
    with refused(f"{count} of {count} images of toy"):
        download("toy")
    assert mirror.asked.total() < 1 + downloads.HOPELESS + 3 * downloads.THREADS


def test_a_name_in_a_file_leads_to_no_other_folder(mirror):
    declare_toy(mirror)
    bad = json.loads(rows(1))
    bad["0"]["filename"] = "../../../../evil.jpg"
    publish(mirror, f"{HOST}/add_att.json", json.dumps(bad).encode())
    with refused("expected images below"):
        download("toy")


@pytest.mark.parametrize(("kind", "pack"), [("zip", zipped), ("tar", tarred)])
def test_an_archive_is_unpacked_and_removed(mirror, kind, pack):
    members = {"Set/a/1.txt": "one", "Set/b.txt": "two", "Set/c.bin": "three"}
    provide(mirror, pack(members), unpack=kind, members="*.txt", strip=1)
    download("set")
    assert content() == {"set/a/1.txt": b"one", "set/b.txt": b"two"}
    assert list(Path("data/.downloads/archives").iterdir()) == []
    asked = mirror.asked.total()
    download("set")
    assert mirror.asked.total() == asked
    Path("data/set/b.txt").unlink()
    download("set")
    assert content() == {"set/a/1.txt": b"one", "set/b.txt": b"two"}


@pytest.mark.parametrize(("kind", "pack"), [("zip", zipped), ("tar", tarred)])
def test_no_member_leaves_its_folder(mirror, kind, pack):
    members = {"../../evil.txt": "x", "/evil.txt": "x", "good.txt": "y"}
    provide(mirror, pack(members), unpack=kind)
    download("set")
    assert content() == {"set/good.txt": b"y"}
    assert not list(Path().rglob("evil.txt"))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 and no more", b"text"])
@pytest.mark.parametrize(("kind", "pack"), [("zip", zipped), ("tar", tarred)])
def test_a_damaged_archive_is_one_line_and_comes_again(mirror, kind, pack, damage):
    provide(mirror, damage, unpack=kind)
    with refused("expected all files of set"):
        download("set")
    assert content() == {}
    publish(mirror, ARCHIVE, pack({"a.txt": "one"}))
    download("set")
    assert content() == {"set/a.txt": b"one"}


def test_a_new_version_of_an_archive_replaces_members_of_the_same_size(mirror):
    provide(mirror, zipped({"a.txt": "one"}))
    download("set")
    provide(mirror, zipped({"a.txt": "two"}), NEWER)
    download("set")
    assert content() == {"set/a.txt": b"two"}


def test_a_conversion_runs_once_and_again_where_its_files_changed(mirror):
    captions = [{"image": "val2014/a.jpg", "caption": ["a red cat sits on a mat"]}]
    address = f"{HOST}/captions.json"
    publish(mirror, address, json.dumps(captions).encode())
    made = "toy/captions_shuffles.json"
    call = "vlmtune.sources.conversions.shuffles.write_shuffles"
    convert = {"call": call, "makes": made, "arguments": {"captions": "toy/captions.json"}}
    declare("set", files=[{"url": address, "path": "toy/captions.json"}], convert=[convert])
    download("set")
    first = Path("data", made).stat().st_mtime_ns
    download("set")
    assert Path("data", made).stat().st_mtime_ns == first
    Path("data/toy/captions.json").unlink()
    captions[0]["caption"] = ["a blue dog runs by a tree"]
    publish(mirror, address, json.dumps(captions).encode())
    download("set")
    assert "dog" in Path("data", made).read_text()


def test_what_is_damaged_inside_is_told_and_comes_again(mirror):
    """The checksum of gzip is behind the content, and a tar may be cut between two members."""
    whole = gzip.decompress(tarred({"a.txt": "one", "b.txt": "two"}))
    flipped = bytearray(gzip.compress(whole, compresslevel=0))
    flipped[flipped.index(b"one")] ^= 1
    cut = whole[: whole.index(b"b.txt")]
    for damaged, why in ((cut, "without its end"), (bytes(flipped), "CRC check failed")):
        provide(mirror, damaged, unpack="tar")
        with refused(f"expected a whole tar archive.*{why}"):
            download("set")
    # Another archive that comes meanwhile does not make the members of this one a person's.
    provide(mirror, zipped({"c.txt": "three"}), f"{HOST}/other.zip", "other")
    download("other")
    publish(mirror, ARCHIVE, whole)
    download("set")
    assert content() == {"set/a.txt": b"one", "set/b.txt": b"two", "other/c.txt": b"three"}


def test_a_killed_unpack_knows_its_members(mirror, monkeypatch):
    """Also where the next run finds a new version of the source."""
    provide(mirror, zipped({"a.txt": "one", "b.txt": "two"}))

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "note_members", killed)
        with pytest.raises(KeyboardInterrupt):
            download("set")
    provide(mirror, zipped({"a.txt": "uno", "b.txt": "due"}), NEWER)
    download("set")
    assert content() == {"set/a.txt": b"uno", "set/b.txt": b"due"}


def test_files_of_a_person_stay_beside_and_under_what_comes(mirror):
    own = Path("data/set/a.txt")
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    own.with_name("notes.md").write_text("mine")
    provide(mirror, zipped({"a.txt": "one", "b.txt": "two"}))
    with refused("data/set/a.txt, got a file that vlmtune did not write: move it away"):
        download("set")
    assert own.read_text() == "mine"
    own.write_text("one")  # as it would come
    download("set")
    expected = {"set/a.txt": b"one", "set/b.txt": b"two", "set/notes.md": b"mine"}
    assert content() == expected


def test_a_folder_is_made_beside_what_a_person_has_there(tmp_path):
    root = tmp_path / "data"
    images = [{"img": image, "label": 0} for image in (PNG, PNG + b"2")]
    (root / "set").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(images), root / "set/rows.parquet")
    make = functools.partial(
        write_class_folders, root, "set/rows.parquet", "set/made", "img", "label", ["cat"]
    )
    make()
    made = content(root / "set/made")
    assert set(made) == {"cat/00001.png", "cat/00002.png"}
    (root / "set/made/notes.md").write_text("mine")
    (root / "set/made/cat/00001.png").unlink()
    make()
    assert content(root / "set/made") == {**made, "notes.md": b"mine"}
    # A new version lacks one of the images; a link may lead to another folder.
    (root / "set/made").rename(tmp_path / "elsewhere")
    (root / "set/made").symlink_to(tmp_path / "elsewhere")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(images[1:]), root / "set/rows.parquet")
    make()
    assert content(root / "set/made/cat") == {"00001.png": PNG + b"2"}
    (root / ".downloads/unpacking.txt").unlink()  # what is there is now of a person
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(images[:1]), root / "set/rows.parquet")
    with refused("a file that vlmtune did not write"):
        make()
    assert [path.name for path in sorted((root / "set").iterdir())] == ["made", "rows.parquet"]


@pytest.mark.parametrize("known", [{"bytes": 3}, *({"checksum": one} for one in NEW), {}])
def test_a_file_of_an_older_version_comes_again(mirror, known):
    address = f"{HOST}/a.txt"
    publish(mirror, address, b"a")
    file = {"url": address, "path": "set/a.txt"}
    declare("set", files=[file])
    download("set")
    newer = address if known else f"{HOST}/newer/a.txt"
    publish(mirror, newer, b"new")
    declare("set", files=[file | {"url": newer} | known])
    download("set")
    assert content() == {"set/a.txt": b"new"}
    asked = mirror.asked.total()
    download("set")
    assert mirror.asked.total() == asked


# -- by hand ----------------------------------------------------------------------------------


def test_a_file_by_hand_is_taken_from_a_folder(mirror, capsys):
    files = [{"url": "hand:set.zip", "path": "set", "unpack": "zip"}]
    declare("set", access="form", files=files, steps=["Ask for set.zip."])
    assert main(["download", "set"]) == 2
    shown = capsys.readouterr()
    assert "- Ask for set.zip." in shown.out
    assert "set.zip of set: a person has to get it" in shown.err
    fetched = Path("fetched")
    fetched.mkdir()
    (fetched / "set.zip").write_bytes(zipped({"a.txt": "one"}))
    assert main(["download", "set", "--from", "fetched"]) == 0
    assert content() == {"set/a.txt": b"one"}
    assert (fetched / "set.zip").exists()
    (fetched / "set.zip").write_bytes(zipped({"photos/b.jpg": "two"}))
    declare("set", files=[files[0] | {"members": "*.txt"}])
    with refused("members like '.*txt' in fetched/set.zip, got others such as .photos/b.jpg"):
        download("set", given=fetched)


def test_what_a_person_places_is_never_called_whole(mirror, capsys):
    publish(mirror, f"{HOST}/a.txt", b"a")
    files = [{"url": f"{HOST}/a.txt", "path": "set/a.txt"}]
    declare("set", access="form", files=files, steps=["Put the videos into set/videos."])
    for _ in range(2):  # the steps are shown again, as the videos may be missing still
        assert main(["download", "set"]) == 0
        shown = capsys.readouterr().out
        assert "- Put the videos into set/videos." in shown
        assert "the steps above are yours" in shown
    assert main(["download", "--list"]) == 0
    assert "  set  [whole, but for the steps]" in capsys.readouterr().out


def test_steps_alone_bring_nothing(capsys):
    assert main(["download", "spec_image_to_text"]) == 0
    shown = capsys.readouterr().out
    assert "spec_image_to_text: nothing came; the steps above are yours" in shown
    assert "next:" not in shown


def test_what_a_person_fetched_is_checked(mirror):
    declare_toy(mirror)
    fetched = Path("fetched")
    fetched.mkdir()
    file = {"url": f"{HOST}/add_att.json", "path": "toy/add_att.json", "bytes": len(rows(3))}
    declare_toy(mirror, files=[file])
    (fetched / "add_att.json").write_text("{}")
    with refused("fetched/add_att.json has 2 bytes, not .*get it again"):
        download("toy", given=fetched)
    (fetched / "add_att.json").write_bytes(rows(3))
    for number in range(3):
        picture(fetched / f"images/{number:012d}.jpg")
    download("toy", given=fetched)
    assert mirror.asked.total() == 0


def test_a_file_of_a_person_is_not_overwritten(mirror):
    declare_toy(mirror, files=[{"url": f"{HOST}/add_att.json", "path": "toy/add_att.json"}])
    own = Path("data/toy/add_att.json")
    own.parent.mkdir(parents=True)
    own.write_bytes(rows(1))
    download("toy")
    assert own.read_bytes() == rows(1)
    known = {"url": f"{HOST}/add_att.json", "path": "toy/add_att.json", "bytes": 7}
    own.with_name("other.json").write_bytes(rows(1))
    declare_toy(mirror, files=[known | {"path": "toy/other.json"}, known])
    with refused("what is there already has .* bytes, not 7; move it away"):
        download("toy")
    assert own.read_bytes() == rows(1)


# -- terms, names, folders --------------------------------------------------------------------


def test_terms_are_accepted_by_a_flag_and_only_once(mirror):
    declare_toy(mirror, terms="Not to train\ngenerative models.")
    with refused("generative models.*run `vlmtune download toy --accept toy`"):
        download("toy")
    assert not DATA_FOLDER.exists()
    download("toy", accepted=["toy"])
    download("toy")
    declare_toy(mirror, terms="Not for commercial use.")
    with refused("Not for commercial use"):
        download("toy")


def test_only_what_a_reader_needs_is_fetched(mirror):
    for part in ("a", "b"):
        publish(mirror, f"{HOST}/{part}.txt", part.encode())
    files = [
        {"url": f"{HOST}/a.txt", "path": "set/a.txt", "of": ["first"]},
        {"url": f"{HOST}/b.txt", "path": "set/b.txt", "of": ["second"]},
    ]
    declare("set", files=files, serves={"benchmarks": ["first", "second"]})
    download("first")
    assert list(content()) == ["set/a.txt"]
    download("set")
    assert list(content()) == ["set/a.txt", "set/b.txt"]


def test_the_archive_of_all_images_takes_the_place_of_single_ones(mirror):
    pictures = {}
    for number in range(4):
        pictures[f"images/{number:012d}.jpg"] = picture(Path("made.jpg"), number).read_bytes()
    provide(mirror, zipped(pictures), name="all", path="toy")
    declare_toy(mirror, images=[single_images(whole=["all"])])
    download("toy", whole=True)
    assert len(content()) == 5
    default_reader("toy").load()


def test_images_without_an_archive_come_one_by_one(capsys):
    assert main(["download", "vsr", "cola_multi", "--whole", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "coco_train2017: 1 file, 19.3 GB" in shown
    assert "vsr: 1 file, 3.4 MB [" in shown
    assert shown.count("they come one by one") == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sugar_crep", "did you mean 'sugar_crepe'"),
        ("negclpp", "did you mean 'negclip'"),
        ("qqqq", "--list"),
    ],
)
def test_an_unknown_name_is_one_line(name, advice):
    with refused(f"got '{name}': .*{advice}"):
        orders([name])


def test_published_weights_have_a_short_name(capsys):
    declare("weights_mine", terms="Ask first.", steps=["Ask."])
    assert main(["download", "mine", "--weights", "negclip", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "weights_mine: nothing to download" in shown
    assert "weights_negclip: 1 file" in shown
    download("mine", accepted=["mine"])


def test_the_environment_moves_all_data(mirror, monkeypatch, tmp_path):
    declare_toy(mirror)
    monkeypatch.setenv(DATA, str(tmp_path / "elsewhere"))
    download("toy")
    benchmark = default_reader("toy")
    benchmark.load()
    assert benchmark.items.images[0].path.is_relative_to(tmp_path / "elsewhere")
    assert in_data_root("data") == "data"  # a word, which is no path below it
    # What is recorded is as it was written: another machine has another folder.
    assert benchmark.spec()["init_args"]["path"] == "data/toy"
    assert not DATA_FOLDER.exists()


def test_a_build_lies_where_training_looks(tmp_path, monkeypatch):
    picture(tmp_path / "photos/a.png")
    (tmp_path / "rows.csv").write_text("image,caption\nphotos/a.png,a red cube\n")
    monkeypatch.setenv(DATA, str(tmp_path / "disk"))
    assert main(["build", "table", "rows.csv", "--out", "data/mine"]) == 0
    assert (tmp_path / "disk/mine/manifest.json").is_file()
    assert ShardSet("data/mine").spec()["init_args"]["path"] == "data/mine"
    assert ShardSet("data/mine").path == str(tmp_path / "disk/mine")


def test_a_dry_run_shows_the_plan_and_asks_nobody(mirror, capsys):
    declare_toy(mirror)
    assert main(["download", "toy", "--dry-run", "--data-root", "disk"]) == 0
    shown = capsys.readouterr().out
    assert "toy: 1 file, 1 of unknown size; 3 images, about 0.0 MB [not here]" in shown
    assert "licence: CC0 1.0; of images: CC0 1.0" in shown
    assert mirror.asked.total() == 0
    assert not Path("disk").exists()


def test_the_list_says_what_is_here(mirror, capsys):
    declare_toy(mirror)
    download("toy")
    assert main(["download", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "  toy  [whole]" in shown
    assert "  sugar_crepe  [not here]" in shown
    assert "  weights_scenes/eqsim  [whole]" in shown
    Path("data/toy/images/000000000001.jpg").unlink()
    assert main(["download", "--list"]) == 0
    assert "  toy  [partly]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected names to download, got none"),
        (["toy", "--from", "nowhere"], "expected a folder by --from, got nowhere"),
    ],
)
def test_what_is_wrong_with_the_options_is_said_first(mirror, capsys, arguments, message):
    declare_toy(mirror)
    assert main(["download", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert mirror.asked.total() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": [{"url": "https://a/b", "path": "../b"}]},
        {"files": [{"url": "https://a/b", "path": "/b"}]},
        {"files": [{"url": "ftp://a/b", "path": "b"}]},
        {"files": [], "steps": []},
        {"steps": ["go"], "convert": [{"call": "os.remove", "makes": "a"}]},
    ],
)
def test_a_source_with_a_mistake_is_one_line(wrong):
    declare("wrong", **wrong)
    with refused("expected a source in .*wrong.yaml"):
        orders(["wrong"])


# -- evaluate and fit -------------------------------------------------------------------------


def test_evaluate_downloads_what_is_missing(mirror, tmp_path, capsys):
    model = write_model(tmp_path / "model")
    declare_toy(mirror, name="sugar_crepe")
    command = ["evaluate", "--model", str(model), "--benchmarks", "sugar_crepe"]
    assert main(command) == 2
    assert "run `vlmtune download sugar_crepe`" in capsys.readouterr().err
    assert main([*command, "--download"]) == 0
    # Without --out, each report gets a folder of its own.
    assert len(list(Path("runs/evaluate").glob("model*/report.json"))) == 1
    asked = mirror.asked.total()
    assert main([*command, "--download", "--out", "again"]) == 0
    assert mirror.asked.total() == asked
    assert Path("again/report.html").is_file()


def test_with_limits_the_images_of_all_drawn_items_come_and_no_others(mirror):
    declare_toy(mirror, name="sugar_crepe")
    benchmark = default_reader("sugar_crepe")
    benchmark.limit = 2
    downloads.download_missing([benchmark])
    assert len(list(Path("data/toy/images").iterdir())) == 2
    two = [default_reader("sugar_crepe"), default_reader("sugar_crepe")]
    two[0].limit = 1
    two[1].limit, two[1].seed = 1, None
    downloads.download_missing(two)
    for benchmark in two:
        benchmark.load()


def test_terms_that_nobody_accepted_stop_no_other_benchmark(mirror, caplog):
    declare_toy(mirror, name="sugar_crepe", terms="Not for sale.")
    with caplog.at_level("WARNING", "vlmtune"):
        downloads.download_missing([default_reader("sugar_crepe")])
    assert "run `vlmtune download sugar_crepe --accept sugar_crepe`" in caplog.text
    assert content() == {}


def test_a_source_stands_for_its_benchmarks(mirror):
    declare_toy(mirror)
    declare("both", serves={"benchmarks": ["toy", "sugar_crepe"]}, steps=["nothing"])
    names = [type(one).__name__ for one in make_benchmarks(["both"])]
    assert names == ["SugarCrepe", "SugarCrepe"]
