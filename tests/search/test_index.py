import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.backbones import hf_models
from tests.refusals import refused
from tests.tiny import halves
from vlmtune.adapters import Adapter, GroundedWords, LinearProbe, Matching, MMAdapter, ZeroShot
from vlmtune.backbones.hf.vilt import Vilt
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.data.images import open_image
from vlmtune.export import save_export
from vlmtune.model.model import Model
from vlmtune.search import Hit, Index, build, build_index
from vlmtune.search import index as opening
from vlmtune.search.encoder import IndexEncoder
from vlmtune.search.parts import Encoded, Part, read_prepared, write_part
from vlmtune.storage.folder import FolderWriter
from vlmtune.types import PooledTokens, Tokens

COLOURS = ("red", "green", "blue")
CAPTIONS = ("a red cube left of the blue dog", "green", "the metal sphere")


def model_of(folder: Path, adapter: Adapter) -> Model:
    """A model whose adapter has random weights, the same in each call."""
    torch.manual_seed(0)
    backbone = OpenClip(str(folder))
    adapter.attach(backbone)
    for parameter in adapter.parameters():  # an adapter may start as the identity
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return Model(backbone, adapter, batch_size=4)


def attached(adapter: Adapter, backbone: OpenClip) -> Adapter:
    adapter.attach(backbone)
    return adapter


@pytest.fixture(scope="module")
def dual(model_folder):
    return model_of(model_folder, LinearProbe())


@pytest.fixture(scope="module")
def joint(model_folder):
    return model_of(model_folder, GroundedWords(heads=2))


ADAPTERS = {
    "linear": LinearProbe,
    "grounded": lambda: GroundedWords(heads=2),
    "mm": lambda: MMAdapter(heads=2),
}


@pytest.fixture(scope="module", params=ADAPTERS)
def indexed(request, model_folder, tmp_path_factory) -> tuple[Model, Index, list[Path]]:
    """A model of a kind, an index of the photos by it, and their files."""
    folder = tmp_path_factory.mktemp("indexed")
    photos = write_photos(folder / "my photos")
    model = model_of(model_folder, ADAPTERS[request.param]())
    build_index([photos], model, folder / "index", "x")
    return model, Index.open(folder / "index", model), images(photos)


@pytest.fixture
def photos(tmp_path) -> Path:
    return write_photos(tmp_path / "my photos")


@pytest.fixture(scope="module")
def whole(joint, tmp_path_factory) -> Path:
    """An index of the photos beside it, by the joint adapter."""
    folder = tmp_path_factory.mktemp("whole")
    build_index([write_photos(folder / "my photos")], joint, folder / "index", "x")
    return folder / "index"


@pytest.fixture
def copied(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "index")


def write_photos(folder: Path) -> Path:
    """Nine images in folders whose names have spaces, and a text file."""
    for i, left in enumerate(COLOURS):
        (folder / f"sub [{i}] ü").mkdir(parents=True)
        for j, right in enumerate(COLOURS):
            halves(left, right, 3 * i + j).save(folder / f"sub [{i}] ü" / f"{left} {right}.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def images(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def opened(folder: Path, model: Model) -> Index:
    return Index.open(folder, model)


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """How many images each call of the encoder took."""
    counts, encode = [], IndexEncoder.encode_images

    def counting(self, pixels):
        counts.append(len(pixels))
        return encode(self, pixels)

    monkeypatch.setattr(IndexEncoder, "encode_images", counting)
    return counts


# -- what is found ----------------------------------------------------------------------------


def test_a_dual_adapter_finds_what_it_ranks_first(dual, photos, tmp_path):
    assert build_index([photos], dual, tmp_path / "index", "dual").images == 9
    index, files = opened(tmp_path / "index", dual), images(photos)
    assert (len(index), list(index.paths)) == (9, files)
    torch.testing.assert_close(
        vectors_in(tmp_path / "index"), dual.encode_image(files), rtol=1e-4, atol=1e-5
    )
    for caption in CAPTIONS:
        wanted = [Hit(files[i], score) for i, score in dual.rank(caption, files)]
        for top, recall in ((9, 1), (4, 100), (1, 1)):
            assert_same(index.search(caption, top, recall), wanted[:top])


def test_it_finds_images_like_another(indexed, monkeypatch):
    model, index, files = indexed
    for i, file in enumerate(files):
        others = index.similar(i, 8)
        assert {hit.path for hit in others} == {*files} - {file}
        # A picture of the same content is like its file, and then like the same others.
        first, *rest = index.similar(open_image(file), 9)
        assert (first.path, first.score) == (file, pytest.approx(1.0, abs=1e-3))
        assert_same(rest, others, 1e-3)
        assert index.similar(i - 9, 8) == others
        if isinstance(model.adapter, LinearProbe):
            vectors = model.encode_image(files)
            cosines = model.similarity(vectors[i : i + 1], vectors)[0]
            expected = [float(cosines[files.index(hit.path)]) for hit in others]
            assert [hit.score for hit in others] == pytest.approx(expected, abs=1e-4)
    # Rows of 300,000 files are not gathered again for each image.
    monkeypatch.setattr(index, "_rows", None)
    assert index.similar(0, 8) == index.similar(-9, 8)
    with pytest.raises(IndexError):
        index.similar(9)


def assert_same(found: list[Hit], wanted: list[Hit], tolerance: float = 1e-4) -> None:
    assert [hit.path for hit in found] == [hit.path for hit in wanted]
    scores = [hit.score for hit in wanted]
    assert [hit.score for hit in found] == pytest.approx(scores, abs=tolerance)


def vectors_in(index: Path) -> torch.Tensor:
    content = bytearray((index / "part-00000/vectors.bin").read_bytes())
    return torch.frombuffer(content, dtype=torch.float32).view(9, -1)


@pytest.mark.parametrize("indexed", ["grounded", "mm"], indirect=True)
def test_a_joint_adapter_scores_what_its_vectors_find(indexed):
    """Recall vectors where the adapter has some, else the embeddings of its backbone."""
    joint, index, files = indexed
    frozen = Model(joint.backbone, attached(ZeroShot(), joint.backbone))
    encoder = IndexEncoder(joint)
    for caption in CAPTIONS:
        scores = joint.score(files, caption)[:, 0]
        spread = float(scores.max() - scores.min())
        first = [files[i] for i, _ in frozen.rank(caption, files)]
        if isinstance(joint.adapter, GroundedWords):
            with encoder.evaluation():
                recalled, _ = encoder.encode_text([caption])
                near = recalled @ encoder.recall_images(index._images(range(9))).T
            first = [files[i] for i in near[0].argsort(descending=True)]
        for top, recall in ((9, 9), (2, 5), (4, 1)):
            hits = index.search(caption, top, recall)
            assert {hit.path for hit in hits} <= set(first[: max(top, recall)])
            assert len(hits) == top
            known = torch.tensor([float(scores[files.index(hit.path)]) for hit in hits])
            found = torch.tensor([hit.score for hit in hits])
            assert float((known - found).abs().max()) < 0.02 * spread
            assert found.tolist() == sorted(found.tolist(), reverse=True)


def test_many_captions_find_what_each_finds(indexed, monkeypatch):
    _, index, _ = indexed
    monkeypatch.setattr(opening, "ENCODED", 2)  # of three captions of different lengths
    results = index.search_all(CAPTIONS, 4, 6)
    assert len(results) == 3
    for caption, hits in zip(CAPTIONS, results, strict=True):
        assert_same(hits, index.search(caption, 4, 6))
    assert index.search_all([], 4) == []


def test_chunks_do_not_change_scores(joint, whole, monkeypatch):
    index = opened(whole, joint)
    wanted = index.search(CAPTIONS[0], 9)
    monkeypatch.setattr(joint.adapter, "chunk_size", lambda *given, **options: 2)
    assert_same(index.search(CAPTIONS[0], 9), wanted)
    monkeypatch.setattr(opening, "SCORED", 4)
    assert_same(index.search(CAPTIONS[0], 9), wanted)


def test_tokens_of_different_lengths_come_back(tmp_path):
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])
    values = torch.randn(4, 5, 3, generator=generator) * mask[:, :, None]
    pooled = torch.randn(4, 2, generator=generator)
    prepared = PooledTokens(pooled, Tokens(values, mask))
    vectors = torch.eye(4)
    chunks = [Encoded(["a", "b"], vectors[:2], prepared[:2])]
    chunks.append(Encoded(["c", "d"], vectors[2:], prepared[2:].cut(3)))
    assert write_part(tmp_path / "part-00000", {"a": 1}, chunks) == ["a", "b", "c", "d"]
    part = Part(tmp_path / "part-00000", {"a": 1})
    assert torch.equal(part.vectors, vectors)
    for rows in ([0, 1, 2, 3], [2, 1], [3], [1, 1, 0]):
        found = read_prepared([(part, torch.tensor(rows))])
        assert isinstance(found, PooledTokens)
        longest = int(mask[rows].sum(dim=1).max())
        assert torch.equal(found.pooled, pooled[rows])
        assert torch.equal(found.tokens.mask, mask[rows, :longest])
        error = (found.tokens.values - values[rows, :longest]).abs()
        assert float(error.max()) <= float(values.abs().max()) / 250
        assert not found.tokens.values[~found.tokens.mask].any()
    short = Encoded(["e"], vectors[:1], prepared[1:2].cut(2))
    write_part(tmp_path / "part-00001", {"a": 1}, [short])
    other = Part(tmp_path / "part-00001", {"a": 1})
    found = read_prepared([(other, torch.tensor([0])), (part, torch.tensor([0, 1]))])
    assert isinstance(found, PooledTokens)
    assert found.tokens.lengths.tolist() == [2, 5, 2]
    assert torch.equal(found.tokens.values[0], found.tokens.values[2])
    assert torch.equal(found.pooled, pooled[[1, 0, 1]])


def test_files_with_one_content_are_all_found(dual, tmp_path, encoded):
    halves("red", "blue", 1).save(tmp_path / "a.png")
    for name in ("b.png", "c.png"):
        shutil.copy(tmp_path / "a.png", tmp_path / name)
    assert build_index([tmp_path], dual, tmp_path / "index", "x").images == 3
    hits = opened(tmp_path / "index", dual).search("red", 3)
    assert [hit.path.name for hit in hits] == ["a.png", "b.png", "c.png"]  # ties keep order
    assert encoded == [1]


def test_an_index_opens_by_the_name_of_its_model_and_reads_no_image(
    model_folder, photos, tmp_path, monkeypatch, joint
):
    save_export(tmp_path / "export", joint.backbone, joint.adapter, provenance={})
    monkeypatch.chdir(tmp_path)
    build_index(["my photos"], joint, "index", "export")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.rmtree(photos)
    index = Index.open("../index", device="cpu")
    assert index.search("red", 3) == opened(tmp_path / "index", joint).search("red", 3)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("ViT-B-32:weights.pt", "ViT-B-32:{here}/weights.pt"),
        ("local-dir:openai", "local-dir:{here}/openai"),
        ("ViT-B-32:openai", "ViT-B-32:openai"),  # a tag, though a folder is called so
        ("weights.pt", "{here}/weights.pt"),
        ("org/name", "org/name"),
    ],
)
def test_an_index_lists_its_model_by_an_absolute_path(dual, tmp_path, monkeypatch, name, listed):
    monkeypatch.chdir(tmp_path)
    Path("weights.pt").touch()
    Path("openai").mkdir()
    halves("red", "blue").save("a.png")
    build_index(["a.png"], dual, "index", name, pretrained=name)
    source = json.loads(Path("index/index.json").read_text())["model"]
    assert source["name"] == source["pretrained"] == listed.format(here=tmp_path)


# -- growing ----------------------------------------------------------------------------------


def test_only_new_and_changed_images_are_encoded(dual, photos, tmp_path, encoded):
    out, files = tmp_path / "index", images(photos)
    built = build_index(files[:4], dual, out, "x")
    assert (built.images, built.added, encoded) == (4, 4, [4])
    built = build_index(files[:6], dual, out, "x")
    assert (built.images, built.added, encoded) == (6, 2, [4, 2])
    assert (build_index([photos], dual, out, "x").added, encoded) == (3, [4, 2, 3])
    assert (build_index([photos], dual, out, "x").added, encoded) == (0, [4, 2, 3])
    halves("green", "green", 99).save(files[1])  # so that its row is of another part than theirs
    built = build_index([files[1]], dual, out, "x")
    assert (built.images, built.added, encoded) == (9, 1, [4, 2, 3, 1])
    index = opened(out, dual)
    assert [index.paths.count(path) for path in files] == [1] * 9
    wanted = {files[i]: score for i, score in dual.rank("green", files)}
    for path, score in index.search("green", 9):
        assert score == pytest.approx(wanted[path], abs=1e-4)


@pytest.mark.parametrize("size", [1, 4])
def test_an_index_of_many_parts_finds_the_same(joint, whole, tmp_path, monkeypatch, size):
    monkeypatch.setattr(build, "PART_ROWS", size)
    build_index([whole.parent], joint, tmp_path / "many", "x")
    assert len(list((tmp_path / "many").glob("part-*"))) == -(-9 // size)
    one, many = opened(whole, joint), opened(tmp_path / "many", joint)
    for caption in CAPTIONS:
        assert_same(many.search(caption, 9), one.search(caption, 9), 1e-3)


def test_another_model_is_refused(dual, joint, other_folder, photos, tmp_path, encoded):
    build_index([photos], dual, tmp_path / "index", "dual")
    before = contents(tmp_path / "index")
    others = joint, model_of(other_folder, LinearProbe())
    for other in others:
        with refused("expected the model of the index .*, dual, got other with other weights"):
            build_index([photos], other, tmp_path / "index", "other")
        with refused("expected the model that encoded the index .*, dual, got other weights"):
            opened(tmp_path / "index", other)
    assert encoded == [4, 4, 1]
    assert contents(tmp_path / "index") == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("calls", [0, 5, 9])
def test_a_killed_run_leaves_the_index_and_the_next_goes_on(
    joint, photos, tmp_path, monkeypatch, encoded, calls
):
    out, files = tmp_path / "index", images(photos)
    build_index(files[:2], joint, out, "x")
    before, wanted = contents(out), opened(out, joint).search("red", 9)
    monkeypatch.setattr(build, "PART_ROWS", 3)
    count, append = [], FolderWriter.append

    def stopping(self, name, data):
        count.append(name)
        if len(count) > calls:
            raise KeyboardInterrupt
        append(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(FolderWriter, "append", stopping)
        with pytest.raises(KeyboardInterrupt):
            build_index([photos], joint, out, "x")
    left = contents(out)
    assert {path: left[path] for path in before} == before
    assert opened(out, joint).search("red", 9) == wanted
    kept = len({path.parent for path in left} - {path.parent for path in before})
    assert kept == calls // 6  # a part has five files that are appended to, and ids.json
    encoded.clear()
    assert build_index([photos], joint, out, "x").added == 7
    assert sum(encoded) == 7 - 3 * kept
    assert {hit.path for hit in opened(out, joint).search("red", 9)} == set(files)


def test_an_index_that_grows_while_it_is_opened_is_whole(joint, photos, tmp_path, monkeypatch):
    out, files, read = tmp_path / "index", images(photos), opening.read_list
    build_index(files[:3], joint, out, "x")
    before = read(out)
    for count, found in ((5, 3), (7, 7)):  # the second run removes the shortlist of the first
        build_index(files[:count], joint, out, "x")
        answers = [before, read(out)]
        monkeypatch.setattr(opening, "read_list", lambda _: answers.pop(0))  # noqa: B023
        assert len(opened(out, joint)) == found
        monkeypatch.undo()
    (out / "part-00000/meta.json").unlink()
    with refused("expected an index of vlmtune in .*, part-00000 is damaged"):
        opened(out, joint)


def test_a_killed_first_run_may_be_followed_by_another_model(dual, joint, photos, tmp_path):
    out = tmp_path / "index"
    build_index([photos], dual, out, "x")
    (out / "index.json").unlink()  # as if killed before its end
    (out / ".part-00001.123.part").mkdir()
    (out / ".part-00001.123.part/vectors.bin").write_bytes(b"half")
    with refused("expected an index of vlmtune in .*index.json, got no such file"):
        opened(out, dual)
    assert build_index([photos], joint, out, "x").added == 9
    written = sorted(path.name for path in out.iterdir())
    assert written == ["index.json", "part-00000", "recall-00000"]
    assert len(opened(out, joint).search("red", 9)) == 9


# -- images that cannot be read ---------------------------------------------------------------


def test_unreadable_images_are_named(dual, photos, tmp_path):
    bad = photos / "a bad one.png"
    bad.write_text("no image")
    built = build_index([photos, photos / "notes.txt"], dual, tmp_path / "index", "x")
    assert (built.images, built.added) == (9, 9)
    assert [path for path, _ in built.unread] == [bad, photos / "notes.txt"]
    for path, reason in built.unread:
        assert str(path) in reason
        assert "\n" not in reason
    assert build_index([photos], dual, tmp_path / "index", "x").unread == built.unread[:1]
    Image.new("RGB", (9, 9), "blue").save(bad)
    assert build_index([photos], dual, tmp_path / "index", "x").added == 1
    bad.write_text("no image again")  # its former row no longer shows the file
    assert build_index([photos], dual, tmp_path / "index", "x").images == 9
    assert bad not in opened(tmp_path / "index", dual).paths


def test_without_images_there_is_no_index_and_other_files_are_left_alone(dual, tmp_path, photos):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_text("no image")
    for given, reason in (
        ("empty", r"expected images .* got none in 0 files: name other"),
        ("missing.png", "expected image files or folders, .*missing.png is missing"),
        ("bad.png", r"expected images .* got none in 1 file, the first as "),
    ):
        with refused(reason):
            build_index([tmp_path / given], dual, tmp_path / "index", "x")
    assert not (tmp_path / "index/index.json").exists()
    before = contents(photos)
    with refused("expected an index or a new folder, .* has other files, first 'notes.txt'"):
        build_index([photos], dual, photos, "x")
    assert contents(photos) == before
    with refused("expected to write .*notes.txt"):
        build_index([photos], dual, photos / "notes.txt", "x")


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tokens.bin", "scales.bin", "offsets.bin", "pooled.bin", "ids.json", "meta.json"]
)
def test_a_damaged_part_is_refused(joint, whole, copied, name):
    path = copied / "part-00000" / name
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with refused("expected an index of vlmtune in .*, part-00000 is damaged"):
        opened(copied, joint)
    with refused("expected an index of vlmtune in .*, part-00000 is damaged"):
        build_index([whole.parent], joint, copied, "x")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x[:-5], "expected an index of vlmtune in .*index.json"),
        (lambda x: "[]", "expected an index of vlmtune"),
        (lambda x: x.replace('"version": 3', '"version": 2'), "got 2 at version"),
        (lambda x: x.replace("part-00000", "../part-00000"), "got '../part-00000' at parts/0"),
        (lambda x: x.replace("part-00000", "part-00007"), "part-00007 is damaged"),
        (lambda x: x.replace('"images": {', '"images": {"x": "none", '), "got 'none' at images/x"),
        (lambda x: x.replace('"images": {', f'"images": {{"x": "{"0" * 64}", '), "no row for x"),
        (lambda x: x.replace('"images": {', f'"images": {{"x": "{"f" * 64}", '), "no row for x"),
        (lambda x: json.dumps(json.loads(x) | {"images": {}}), "it has no images"),
    ],
)
def test_a_damaged_list_is_refused(joint, copied, change, reason):
    path = copied / "index.json"
    path.write_text(change(path.read_text()))
    with refused(reason):
        opened(copied, joint)


def test_without_embeddings_or_faiss_there_is_one_line(joint, whole, tmp_path, monkeypatch):
    backbone = Vilt(str(hf_models.write_vilt(tmp_path / "vilt")))
    with refused("expected a model with embeddings to search by, got Matching on Vilt"):
        IndexEncoder(Model(backbone, attached(Matching(), backbone)))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with refused(r"expected the package faiss .* pip install 'vlmtune\[search\]'"):
        opened(whole, joint)
