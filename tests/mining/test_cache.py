"""The similarity cache against brute force, through kills and damage."""

import json
import shutil

import numpy as np
import pytest
import torch

from tests.refusals import refused
from tests.runs import Killed
from vlmtune.mining.build import nearest, open_or_build_cache
from vlmtune.mining.cache import CacheKey, SimilarityCache
from vlmtune.storage.folder import DamagedError, FolderWriter

N, D, K = 23, 5, 6


def toy(seed=0):
    """Captions, some shared by images and some images without any, and features."""
    dice = np.random.default_rng(seed)
    captions = {}
    for i in range(N):
        own = [f"caption {i}-{c}" for c in range(i % 4)]
        captions[f"image{i}"] = [*own, f"shared {dice.integers(6)}"] if i != 7 else []
    return captions, torch.from_numpy(dice.standard_normal((N, D))).float()


class Scoring:
    """Scores by a table; notes the images of each call and dies at the one it is told."""

    def __init__(self, die_at=None):
        self.calls, self.die_at = [], die_at

    def __call__(self, images, captions, pairs):
        if len(self.calls) == self.die_at:
            raise Killed
        self.calls.append(list(images))
        return torch.tensor([value(images[i], captions[j]) for i, j in pairs.tolist()])


def value(image, caption):
    state = np.random.default_rng([sum(map(ord, image)), *map(ord, caption)])
    return float(np.float32(state.integers(0, 8) / 8))  # few values, so that there are ties


def key(**changes):
    own = {"backbone": "b", "scorer": "s", "source": "c", "neighbours": K, "tile": 5}
    return CacheKey(**own | changes)


def build(root, score=None, changed=None, captions=None, **changes):
    known, x = toy()
    features = x if changed is None else changed
    return open_or_build_cache(root, key(**changes), captions or known, lambda: features, score)


def unavailable():
    raise AssertionError("encoded again")


def brute(captions, x, k):
    """For each image its neighbours, and its false captions, hardest first."""
    names, x = list(captions), torch.nn.functional.normalize(x, dim=1)
    similarity = (x @ x.T).tolist()
    out = {}
    for i, name in enumerate(names):
        others = sorted((j for j in range(len(names)) if j != i), key=lambda j: -similarity[i][j])
        near = [names[j] for j in others[:k]]
        false = {c for other in near for c in captions[other]} - set(captions[name])
        out[name] = near, sorted(false, key=lambda c: (-value(name, c), c))
    return out


def counterparts(cache, image):
    rows = cache.counterpart_rows(cache.image_ids.find(image))
    return [cache.image_ids[row] for row in rows]


@pytest.mark.parametrize("columns", [1, 4, 100])
@pytest.mark.parametrize("k", [1, 5, N - 1])
def test_nearest_equals_brute_force(k, columns):
    x = torch.nn.functional.normalize(toy()[1].double(), dim=1).float()
    index, similarity = nearest(x, range(3, 12), k, columns)
    cosines = (x @ x.T)[3:12].clone()
    cosines[torch.arange(9), torch.arange(3, 12)] = -torch.inf
    expected = cosines.sort(dim=1, descending=True, stable=True)
    assert index.equal(expected.indices[:, :k])
    torch.testing.assert_close(similarity, expected.values[:, :k])


def test_ties_go_to_the_first_row_whatever_the_chunks():
    x = torch.eye(2).repeat(6, 1)
    x[0] = -x[0]  # also negative cosines, and zeros of both signs
    results = [nearest(x, range(12), 11, columns)[0] for columns in (1, 5, 12)]
    assert results[0].equal(results[1])
    assert results[0].equal(results[2])
    assert results[0][2].tolist() == [4, 6, 8, 10, 1, 3, 5, 7, 9, 11, 0]


def test_the_cache_equals_brute_force(tmp_path):
    captions, x = toy()
    cache = build(tmp_path, Scoring())
    expected = brute(captions, x, K)
    assert cache.scored
    assert [*cache.image_ids] == [*captions]
    for name, (near, false) in expected.items():
        assert cache.similar(name) == near
        assert cache.similar(name, 2) == near[:2]
        assert cache.false_captions(name) == false
        assert cache.false_captions(name, 3) == false[:3]
        place = {caption: rank for rank, caption in enumerate(false)}
        hardest = {n: [place[c] for c in captions[n] if c in place] for n in near}
        told = (n for n in near if hardest[n])
        ranked = sorted(told, key=lambda n: (min(hardest[n]), near.index(n)))
        assert counterparts(cache, name) == ranked
    assert sum(len(false) for _, false in expected.values()) > 50


def test_neighbours_that_say_nothing_false_are_no_counterparts(tmp_path):
    captions = {"a": ["x", "y"], "b": ["X. "], "c": ["z"], "d": []}
    x = torch.tensor([[1.0, 0], [1.0, 0.1], [1.0, 0.9], [1.0, 0.2]])
    for name, score in (("coarse", None), ("fine", Scoring())):
        cache = open_or_build_cache(tmp_path, key(scorer=name), captions, lambda: x, score)
        assert cache.similar("a") == ["b", "d", "c"]
        assert counterparts(cache, "a") == ["c"]
        assert counterparts(cache, "b")[0] == "a"  # y is false of b
        assert not {"x", "X. "} & {*cache.false_captions("a"), *cache.false_captions("b")}
    # Without scores only images are compared.
    cache = build(tmp_path)
    assert not cache.scored
    assert cache.similar("image3") == brute(*toy(), K)["image3"][0]
    assert cache.false_captions("image3") == []
    assert len(cache) == N


def test_a_killed_build_goes_on(tmp_path):
    whole = build(tmp_path / "whole", Scoring())
    killed, resumed = Scoring(die_at=3), Scoring()
    with pytest.raises(Killed):
        build(tmp_path / "cut", killed)
    assert len(killed.calls) == 3
    assert not list((tmp_path / "cut").glob("neighbours-*/meta.json"))
    cache = build(tmp_path / "cut", resumed)
    names = list(toy()[0])
    assert [images for call in killed.calls for images in call] == names[:15]
    assert [images for call in resumed.calls for images in call] == names[15:]
    for file in sorted(whole.folder.iterdir()):
        if file.name != "meta.json":
            assert file.read_bytes() == (cache.folder / file.name).read_bytes()
    assert not list((tmp_path / "cut").glob(".*.tiles"))


def test_a_build_killed_after_its_last_tile_computes_nothing_again(tmp_path, monkeypatch):
    def dead(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FolderWriter, "finish", dead)
        with pytest.raises(Killed):
            build(tmp_path, Scoring())
    captions = toy()[0]
    cache = open_or_build_cache(tmp_path, key(), captions, unavailable, Scoring(die_at=0))
    assert cache.false_captions("image3") == brute(*toy(), K)["image3"][1]


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_tile_is_computed_again(tmp_path, damage):
    with pytest.raises(Killed):
        build(tmp_path, Scoring(die_at=3))
    (tiles,) = tmp_path.glob(".*.tiles")
    file = sorted(tiles.glob("*.npz"))[1]
    content = bytearray(file.read_bytes())
    content[content.index(b"NUMPY") + 140] ^= 255  # in the numbers of the first array
    changed = {"truncated": content[:-40], "changed": content, "empty": b""}[damage]
    file.write_bytes(bytes(changed))
    scoring = Scoring()
    cache = build(tmp_path, scoring)
    assert [call[0] for call in scoring.calls] == ["image5", "image15", "image20"]
    assert cache.false_captions("image6") == brute(*toy(), K)["image6"][1]


@pytest.mark.parametrize(
    "change", [{"source": "d"}, {"backbone": "e"}, {"scorer": "f"}, {"neighbours": 2}]
)
def test_only_another_key_is_another_cache(tmp_path, change):
    build(tmp_path, Scoring())
    open_or_build_cache(tmp_path, key(), toy()[0], unavailable, Scoring(die_at=0))
    scoring = Scoring()
    build(tmp_path, scoring, **change)
    assert scoring.calls
    assert len(list(tmp_path.glob("neighbours-*/meta.json"))) == 2


def test_other_pixels_of_the_same_images_are_another_cache(monkeypatch):
    before = key().folder
    monkeypatch.setattr("vlmtune.mining.cache.DECODING", 99)
    assert key().folder != before


@pytest.mark.parametrize("name", ["false.bin", "true.bin", "captions.json", "meta.json"])
@pytest.mark.parametrize("damage", ["gone", "truncated", "changed"])
def test_a_damaged_cache_is_found_and_built_again(tmp_path, name, damage, caplog):
    folder = build(tmp_path, Scoring()).folder
    file = folder / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(bytes(content[:-3] if damage == "truncated" else content))
    with pytest.raises(DamagedError):
        SimilarityCache(folder)
    cache = build(tmp_path, Scoring())
    assert "Rebuilding" in caplog.text
    assert cache.false_captions("image3") == brute(*toy(), K)["image3"][1]


@pytest.mark.parametrize("change", [{"neighbours": 3}, {"neighbours": "6"}, {"scored": False}])
def test_facts_that_were_changed_are_damage(tmp_path, change):
    path = build(tmp_path, Scoring()).folder / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | change))
    with pytest.raises(DamagedError):
        SimilarityCache(path.parent)


def test_a_foreign_cache_in_the_place_of_this_is_built_again(tmp_path):
    other = build(tmp_path, Scoring(), source="other").folder
    shutil.copytree(other, tmp_path / key().folder)
    scoring = Scoring()
    build(tmp_path, scoring)
    assert scoring.calls
    meta = json.loads((tmp_path / key().folder / "meta.json").read_text())
    assert meta["key"]["source"] == "c"


def test_tiles_of_other_images_are_not_used(tmp_path):
    captions, x = toy()
    with pytest.raises(Killed):
        build(tmp_path, Scoring(die_at=3))
    fewer = {name: some for name, some in captions.items() if name != "image2"}
    rest = torch.cat([x[:2], x[3:]])
    scoring = Scoring()
    cache = open_or_build_cache(tmp_path, key(), fewer, lambda: rest, scoring)
    assert len(scoring.calls) == 5
    assert cache.false_captions("image9") == brute(fewer, rest, K)["image9"][1]
    cache = build(tmp_path, Scoring())  # one that was unreadable is back
    assert cache.false_captions("image9") == brute(captions, x, K)["image9"][1]
    assert {file.name for file in tmp_path.iterdir()} == {key().folder, f"{key().folder}.lock"}


def test_copies_of_an_image_are_not_its_neighbours(tmp_path):
    """Even with the same features, other images are neighbours first."""
    captions, x = toy()
    names = list(captions)
    x[5] = x[2]
    contents = {name: name for name in names} | {names[5]: names[2]}
    cache = open_or_build_cache(tmp_path, key(), captions, lambda: x, None, contents)
    expected = brute(captions, x, N - 1)
    for name, (near, _) in expected.items():
        others = [other for other in near if contents[other] != contents[name]]
        assert cache.similar(name) == others[:K]
    with refused("at least 2 images to compare, got 1"):
        same = dict.fromkeys(names, "same")
        open_or_build_cache(tmp_path / "one", key(), captions, lambda: x, None, same)


def test_bad_numbers_are_refused(tmp_path):
    x = toy()[1]
    x[4, 2] = torch.nan
    with refused("finite features"):
        build(tmp_path, Scoring(), changed=x)
    with refused("finite scores"):
        build(tmp_path, lambda images, captions, pairs: torch.full((len(pairs),), torch.nan))
    with refused("at least 2 images"):
        open_or_build_cache(tmp_path, key(), {"alone": ["a"]}, lambda: x[:1], Scoring())
    file = tmp_path / "file"
    file.touch()
    with refused("folder"):
        build(file)
