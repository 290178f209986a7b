"""Rendered pairs go in, Winoground's `examples.jsonl` (Thrush et al. 2022) comes out."""

import json
from collections.abc import Sequence

from data_builders.phrases import both, related
from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.image_files import SceneImage, pairs_of
from data_builders.worlds.scenes.pairs import ExchangedPairs
from data_builders.worlds.scenes.statements import describe


def examples(images: Sequence[SceneImage], series: ExchangedPairs) -> str:
    """Returns one line for each pair, with the tags of Thrush et al. 2022, section 3.2."""
    lines = []
    for k, pair in pairs_of(images):
        attribute = series.attribute(k)
        row = {"id": k}
        row |= {f"image_{i}": image.name.removesuffix(".png") for i, image in enumerate(pair)}
        row |= {f"caption_{i}": text for i, text in enumerate(_captions(pair, attribute))}
        tag = f"Adjective-{attribute.capitalize()}" if attribute else "Noun"
        row |= {"tag": tag, "secondary_tag": "", "num_main_preds": 1}
        lines.append(json.dumps({**row, "collapsed_tag": "Relation" if attribute else "Object"}))
    return "".join(f"{line}\n" for line in lines)


def _captions(pair: Sequence[SceneImage], attribute: str | None) -> list[str]:
    if attribute:
        return [both(*(describe(o, [attribute]) for o in image.scene.objects)) for image in pair]
    # The same relation in both captions, so that only the objects change positions.
    name = clear_relation(pair[0].scene, 0, 1) or ""
    (a, b), (c, d) = (map(describe, image.scene.objects) for image in pair)
    return [related(a, name, b), related(d, name, c)]
