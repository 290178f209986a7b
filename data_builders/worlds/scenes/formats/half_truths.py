"""Units of captions with their foils, as half-truths are made of (Kargi et al. 2026).

In: rendered scenes. Out: the contents of the file.

An entity is an object that the scene shows; its foil, with another colour or shape, is nowhere in
the scene. A relation stands out; its foils have another relation, which does not hold, or another
object, which is absent. So what the foils are added to is true, and the whole is false.
"""

from typing import Any

from data_builders.phrases import PHRASES, related, with_article
from data_builders.worlds.scenes.formats.context import SceneContext, SuiteScenes
from data_builders.worlds.scenes.statements import Noun

Record = dict[str, Any]
_CHANGES = {"color": "attribute_change", "shape": "object_change"}


def units(scenes: SuiteScenes) -> list[Record]:
    """Returns a record for each scene: two entities and their relation, all with foils."""
    records = []
    for image, record in scenes.rows("half_truths", _record):
        path = {"sample_id": image.name.partition(".")[0], "image_path": image.name}
        records.append(path | record)
    return records


def _record(context: SceneContext) -> Record | None:
    for first, name, second in context.relations():
        foils = [_entity_foils(context, noun) for noun in (first, second)]
        negatives = _relation_foils(context, first, name, second)
        # Two objects of one description would be the same entity.
        if first == second or not all(foils) or not negatives:
            continue
        entities = [with_article(noun) for noun in (first, second)]
        relation = _phrase(first, name, second) | {"negatives": negatives}
        return {
            "original_caption": related(first, name, second),
            "entities": entities,
            "negative_entities": dict(zip(entities, foils, strict=True)),
            "relations": [relation],
        }
    return None


def _entity_foils(context: SceneContext, noun: Noun) -> list[Record]:
    """One foil for each kind of change that has any."""
    foils = []
    for kind, change in _CHANGES.items():
        if other := context.lacking(noun, kind):
            foils.append({"negative": with_article(other), "change_type": change})
    return foils


def _relation_foils(context: SceneContext, first: Noun, name: str, second: Noun) -> list[Record]:
    """One foil with another relation and one with another object, where there are such."""
    foils = []
    if other := context.false_relation(first, second):
        foils.append(_phrase(first, other, second) | {"change_type": "predicate_change"})
    if missing := context.lacking(second, "shape"):
        foils.append(_phrase(first, name, missing) | {"change_type": "object_change"})
    return foils


def _phrase(first: Noun, name: str, second: Noun) -> Record:
    return {
        "subject": with_article(first),
        "relation_type": PHRASES[name],
        "object": with_article(second),
    }
