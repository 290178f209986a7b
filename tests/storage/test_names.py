import pickle
import random
import tracemalloc

import pytest

from vlmtune.storage import names as module
from vlmtune.storage.names import Names

WORDS = ["", "a", "b", "ab", "é", "猫", "a\x00b", "\ud800", "long " * 50]


@pytest.mark.parametrize("digest", [None, 0, 2**64 - 1])
def test_each_string_has_its_number(monkeypatch, digest):
    """Also where all strings have one digest."""
    if digest is not None:
        monkeypatch.setattr(module, "_digest", lambda encoded: digest)
    some = [*WORDS, *(f"image-{n}.jpg" for n in range(60))]
    random.Random(0).shuffle(some)
    made = pickle.loads(pickle.dumps(Names(some)))
    assert [*made] == some
    assert [made.find(name) for name in some] == [*range(len(some))]
    assert all(name in made for name in some)
    assert made[-1] == some[-1]
    for other in ("c", "image-60.jpg", "A", "\udc00"):
        assert made.find(other) is None
        assert other not in made
    with pytest.raises(IndexError):
        made[len(some)]


def test_no_string_takes_more_than_a_few_bytes():
    assert len(Names([])) == 0
    assert Names([]).find("a") is None
    tracemalloc.start()
    made = Names(f"image-{n:06d}.jpg" for n in range(20_000))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made) == 20_000
    assert kept < 20_000 * 45  # 16 of the string, 24 of numbers; a list and a dict take 170
