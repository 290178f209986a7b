import json

import pytest

from vlmtune.benchmarks.karpathy_files import read_split
from vlmtune.errors import UserError


def changed(how):
    row = {"filename": "0.jpg", "split": "test", "sentences": [{"raw": "a"}]}
    return {"images": [row | how, {**row, "filename": "1.jpg"}]}


def write(folder, content):
    path = folder / "dataset.json"
    path.write_text(json.dumps(content))
    return path


def test_reads_one_split_with_folders_and_blanks_collapsed(tmp_path):
    content = changed({"filepath": "val2014", "sentences": [{"raw": " a  dog\n"}, {"raw": "b"}]})
    # What another split holds is not looked at.
    content["images"].append({"filename": "", "split": "train", "sentences": []})
    path = write(tmp_path, content)
    assert read_split(path, "test") == [("val2014/0.jpg", ("a dog", "b")), ("1.jpg", ("a",))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "no list `images`"),
        ({"images": [3]}, "no list `images` of objects"),
        ({"images": []}, r"a split out of \[\]"),
        ({"images": [{"split": "val"}]}, r"a split out of \['val'\]"),
        (changed({"sentences": [{"raw": " "}]}), "blank"),
        (changed({"sentences": []}), "without a caption"),
        (changed({"sentences": [3]}), "another layout"),
        (changed({"sentences": None}), "another layout"),
        (changed({"filename": ""}), "without a file name"),
        (changed({"filename": 7}), "without a file name"),
        (changed({"filepath": 7}), "without a file name"),
        (changed({"filename": "1.jpg"}), "same image twice"),
    ],
)
def test_malformed_file(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        read_split(write(tmp_path, content), "test")
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="FileNotFoundError"):
        read_split(tmp_path / "none.json", "test")
