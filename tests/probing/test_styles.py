from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vlmtune.errors import UserError
from vlmtune.probing.categories import STYLES, categories
from vlmtune.probing.fine import fine
from vlmtune.probing.styles import load_styles

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def write_graph(path, size=("height", "width"), inputs=("image",)):
    """A graph that inverts an image: 255 - image."""
    helper, form = onnx.helper, onnx.TensorProto.FLOAT
    shape = [1, 3, *size]
    white = helper.make_tensor("white", form, [1], [255.0])
    graph = helper.make_graph(
        [helper.make_node("Sub", ["white", "image"], ["styled"])],
        "invert",
        [helper.make_tensor_value_info(name, form, shape) for name in inputs],
        [helper.make_tensor_value_info("styled", form, shape)],
        [white],
    )
    opset = [helper.make_opsetid("", 17)]
    path.parent.mkdir(exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def test_a_graph_is_a_style(tmp_path):
    write_graph(tmp_path / "pasta.onnx")
    write_graph(tmp_path / "starry_night.onnx", size=(16, 16))
    styles = load_styles(tmp_path, ["pasta", "starry_night", "bonfire"])
    assert styles.keys() == {"pasta", "starry_night"}
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    generator = np.random.default_rng(0)
    free, fixed = (styles[x].apply(image, styles[x].sample(generator)) for x in sorted(styles))
    assert (np.asarray(free) == 255 - pixels).all()
    assert fixed.size == (30, 20)
    assert abs(np.asarray(fixed).mean() - (255 - pixels).mean()) < 5
    assert "pasta" in fine(styles).runnable().names
    task = categories(styles).runnable()
    (style,) = [one for one in task.classes if one.name == "style_transfer"]
    assert [x.name for x in style.of("train")] == ["starry_night"]
    version = fine(styles).runnable().versions("a", "train")[-1]
    assert version.member.name == "pasta"
    write_graph(tmp_path / "pasta.onnx", size=(16, 16))  # another graph, other keys
    again = fine(load_styles(tmp_path, ["pasta", "starry_night"])).runnable()
    assert again.versions("a", "train")[-1].key("a", 32) != version.key("a", 32)


def test_several_graphs_of_a_style_are_sampled(tmp_path):
    """DeepDream with 7 to 12 iterations, each a graph."""
    for i in range(7, 13):
        write_graph(tmp_path / f"deep_dream-{i}.onnx", size=(i, i))
    styles = load_styles(tmp_path, STYLES)
    assert styles.keys() == {"deep_dream"}
    task = categories(styles)
    (member,) = [x for one in task.classes for x in one.members if x.name == "deep_dream"]
    generator = np.random.default_rng(0)
    drawn = {member.test.sample(generator)["graph"] for _ in range(60)}
    assert {Path(file).name for file, _ in drawn} == {f"deep_dream-{i}.onnx" for i in range(7, 13)}
    image = Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8))
    shown = member.test.apply(image, member.test.sample(generator))
    assert np.asarray(shown).min() == 255


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="got none: rename it"):
        load_styles(tmp_path, ["pasta"])
    write_graph(tmp_path / "other" / "noodles.onnx")
    with pytest.raises(UserError, match=r"called pasta\.onnx, got noodles\.onnx"):
        load_styles(tmp_path / "other", ["pasta"])
    write_graph(tmp_path / "pasta.onnx", inputs=("image", "style"))
    with pytest.raises(UserError, match="expected a graph from one image"):
        load_styles(tmp_path, ["pasta"])
    (tmp_path / "pasta.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match="expected an ONNX graph in"):
        load_styles(tmp_path, ["pasta"])
