"""Winoground's `examples.jsonl` (Thrush et al. 2022).

In: rendered pairs. Out: the text of the file.
"""

import json
from collections.abc import Sequence
from typing import Any

from data_builders.phrases import both, related
from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.image_files import SceneImage, pairs_of
from data_builders.worlds.scenes.pairs import ExchangedPairs
from data_builders.worlds.scenes.statements import Noun


def examples(images: Sequence[SceneImage], series: ExchangedPairs) -> str:
    """Returns one line for each pair, with the tags of Thrush et al. 2022, section 3.2."""
    lines = []
    for k, pair in pairs_of(images):
        attribute = series.attribute(k)
        names = [image.name.removesuffix(".png") for image in pair]
        captions = _captions(pair, attribute)
        row: dict[str, Any] = {"id": k, "image_0": names[0], "image_1": names[1]}
        row |= {"caption_0": captions[0], "caption_1": captions[1]}
        if attribute:
            tag, collapsed = f"Adjective-{attribute.capitalize()}", "Relation"
        else:
            tag, collapsed = "Noun", "Object"
        row |= {"tag": tag, "secondary_tag": "", "num_main_preds": 1, "collapsed_tag": collapsed}
        lines.append(f"{json.dumps(row)}\n")
    return "".join(lines)


def _captions(pair: Sequence[SceneImage], attribute: str | None) -> list[str]:
    kinds = [attribute or "color"]
    first, second = pair
    a, b = [Noun.of(obj, kinds) for obj in first.scene.objects]
    c, d = [Noun.of(obj, kinds) for obj in second.scene.objects]
    if attribute:
        return [both(a, b), both(c, d)]
    # The same relation in both captions, so that only the objects change positions.
    name = clear_relation(first.scene, 0, 1) or ""
    return [related(a, name, b), related(d, name, c)]
