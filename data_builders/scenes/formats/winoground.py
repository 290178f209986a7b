"""Winoground's `examples.jsonl` (Thrush et al. 2022): twins, and captions of the same words."""

import json
from collections.abc import Sequence

from data_builders.scenes.captions import clear_relation
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.statements import article, noun, worded
from data_builders.scenes.twins import AR4TTwins


def examples(drawn: Sequence[Drawn], series: AR4TTwins) -> str:
    """Returns the lines of a drawn series, one for each pair of twins.

    Relations exchange the two objects ("a red cube behind a blue cone", tag Noun, collapsed to
    Object), attributes change owners ("a red cube and a blue cone", tag Adjective, collapsed to
    Relation), as in Thrush et al. 2022, section 3.2.
    """
    lines = []
    for k in range(0, len(drawn), 2):
        attribute = series.attribute(k // 2) if (k // 2) % 2 else None
        row: dict[str, int | str] = {"id": k // 2}
        for side in (0, 1):
            d = drawn[k + side]
            row[f"image_{side}"] = d.file.rpartition("/")[2].removesuffix(".png")
        for side in (0, 1):
            row[f"caption_{side}"] = _caption(drawn[k + side], drawn[k], attribute)
        tag = f"Adjective-{attribute.capitalize()}" if attribute else "Noun"
        row |= {"tag": tag, "secondary_tag": "", "num_main_preds": 1}
        lines.append(json.dumps({**row, "collapsed_tag": "Relation" if attribute else "Object"}))
    return "".join(f"{line}\n" for line in lines)


def _caption(d: Drawn, first: Drawn, attribute: str | None) -> str:
    a, b = d.scene.objects
    if attribute:
        return f"{article(noun(a, [attribute]))} and {article(noun(b, [attribute]))}"
    # The same relation in both images, so that only the objects change places.
    name = clear_relation(first.scene, 0, 1)
    assert name is not None, "AR4TTwins draws scenes of clear relation only"
    things = (noun(a), noun(b)) if d is first else (noun(b), noun(a))
    return worded(things[0], name, things[1])
