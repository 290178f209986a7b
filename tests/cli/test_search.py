"""`vlmtune index` and `vlmtune search`, from files to a table."""

import re
import shutil
from pathlib import Path

import pytest

import vlmtune
from tests.refusals import command_output, command_refused
from tests.tiny import halves
from vlmtune.export import save_export


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my [red] photos"
    folder.mkdir()
    for i, colour in enumerate(("red", "green", "blue")):
        halves(colour, "red", i).save(folder / f"{colour} one.png")
    return folder


def rows(output: str) -> list[tuple[str, float]]:
    found = re.findall(r"^\| (.+?) +\| +(-?[\d.]+) \|$", output, re.MULTILINE)
    return [(name, float(score)) for name, score in found]


def test_what_is_indexed_is_found(model_folder, photos, tmp_path, capsys, monkeypatch):
    (photos / "bad.png").write_text("no image")
    index = ("index", photos, "--model", model_folder, "--out", "runs/index", "--device", "cpu")
    out, _ = command_output(capsys, index)
    first, last = out.splitlines()
    assert first.startswith(f"not indexed: {photos / 'bad.png'}: expected an image in")
    assert last == "runs/index: 3 images, 3 of them new or changed; not indexed: 1"
    again, _ = command_output(capsys, index)
    assert again.splitlines()[-1].startswith("runs/index: 3 images, 0 of them")
    search = ("search", "runs/index", "a red cube", "green", "--device", "cpu")
    looked_up, resolve = [], Path.resolve

    def noting(path, strict=False):
        looked_up.append(path)
        return resolve(path, strict)

    # Looking up a million files of an index takes a minute.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "resolve", noting)
        out, _ = command_output(capsys, [*search, "--top", 2])
    assert not [path for path in looked_up if path.suffix == ".png"]
    files = sorted(photos.glob("* one.png"))
    model = vlmtune.load(model_folder, device="cpu")
    wanted = [hit for text in ("a red cube", "green") for hit in model.rank(text, files)[:2]]
    names = [str(files[i].relative_to(tmp_path)) for i, _ in wanted]
    assert [name for name, _ in rows(out)] == names
    assert [score for _, score in rows(out)] == pytest.approx([x for _, x in wanted], abs=2e-4)
    assert out.splitlines()[-1].startswith("of 3 images; higher is better")


def test_images_are_queries_and_a_page_shows_what_is_found(model_folder, photos, tmp_path, capsys):
    index = ("index", photos, "--model", model_folder, "--out", "index")
    command_output(capsys, index)
    copy = tmp_path / "<i>.png"
    shutil.copy(photos / "red one.png", copy)
    search = ("search", "index", "red", "--like", copy, "--device", "cpu", "--html")
    out, _ = command_output(capsys, [*search, "found.html"])
    path, score = rows(out)[3]  # the first of three for the image
    assert Path(path).name == "red one.png"
    assert score == pytest.approx(1.0)
    page = Path("found.html").read_text()
    # Each of two queries finds three images, and each image shows the two others.
    assert page.count('<figure class="card hit"') == 6
    assert page.count("data:image/jpeg;base64,") == 6 + 12
    assert "<h2>red</h2>" in page
    assert "<h2>like &lt;i&gt;.png</h2>" in page
    assert "http" not in page.replace("http-equiv", "")
    for read in (copy, photos / "red one.png", "index/index.json"):
        command_refused(capsys, (*search, read), "which is read: choose another")


def test_captions_that_are_cut_are_named(model_folder, photos, capsys):
    cut = " ".join(["red"] * 76)
    index = ["index", photos, "--model", model_folder, "--out", "index"]
    command_output(capsys, index)
    score = ("score", model_folder, photos / "red one.png", "--text", "a red cube", "--text", cut)
    for words in (("search", "index", "a red cube", cut), score):
        _, err = command_output(capsys, words)
        warning = "vlmtune: warning: longer than the model reads, and truncated: "
        assert err.splitlines() == [warning + repr(cut[:80])]


def test_a_model_that_has_moved_is_named(model_folder, photos, tmp_path, capsys):
    base = shutil.copytree(model_folder, tmp_path / "base")
    model = vlmtune.load(base, device="cpu")
    save_export("export", model.backbone, model.adapter, provenance={})
    index = ("index", photos, "--out", "index", "--device", "cpu", "--model", "export")
    command_output(capsys, index)
    search = ("search", "index", "green", "--device", "cpu")
    found, _ = command_output(capsys, search)
    moved = ("--pretrained", base.rename(tmp_path / "moved"))
    command_refused(capsys, search, "name it with --pretrained FOLDER")
    assert command_output(capsys, [*search, *moved])[0] == found
    Path("export").rename("renamed")
    command_refused(
        capsys, [*search, *moved], "name where the model is now (of an index with --model)"
    )
    assert command_output(capsys, [*search, *moved, "--model", "renamed"])[0] == found


def test_mistakes_are_one_line(photos, capsys):
    for words, reason in (
        (("search", "index", "green", "--top", 0), "--top: expected 1 or more, got 0"),
        (("search", photos, "green"), "index.json, got no such file"),
        (("search", "index"), "expected captions, or images after --like"),
        (("index", photos, "--out", "x"), "required: --model"),
    ):
        (_,) = command_refused(capsys, words, reason)
