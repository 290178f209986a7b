"""The units of a caption, and each half-truth that one foil of a unit makes.

In: a record of entities and relations with their foils. Out: short true descriptions, each with a
half-truth.
"""

from collections.abc import Iterator

from typing_extensions import TypedDict

from vlmtune.benchmarks.files import Text

LAYOUT = "records with image_path, entities, negative_entities and relations"
Comparison = tuple[str, tuple[str, str]]  # "entity" or "relation", description and half-truth


class _Foil(TypedDict):
    negative: Text


class _Phrase(TypedDict):
    subject: Text
    relation_type: Text
    object: Text


class _Relation(_Phrase):
    negatives: list[_Phrase]


class Units(TypedDict):
    """The units of a caption; the file holds more."""

    image_path: Text
    entities: list[Text]
    negative_entities: dict[str, list[_Foil]]
    relations: list[_Relation]


def comparisons(record: Units) -> Iterator[Comparison]:
    """Yields what the foils of a caption make, first of its entities, then of its relations."""
    entities = list(dict.fromkeys(record["entities"]))
    # A sole entity has nothing that it could be added to.
    if len(entities) > 1:
        shorts = (entities[1], *entities)
        for short, entity in zip(shorts, entities, strict=False):
            for foil in record["negative_entities"].get(entity, []):
                yield "entity", (short, f"{short} and {foil['negative']}")
    for relation in record["relations"]:
        short = relation["subject"]
        true = _words(relation)
        for foil in relation["negatives"]:
            words = _words(foil)
            if words == true:
                continue
            if foil["subject"] != short:
                words = f"{short} and {words}"  # else it would name another subject
            yield "relation", (short, words)


def _words(phrase: _Phrase) -> str:
    return f"{phrase['subject']} {phrase['relation_type']} {phrase['object']}"
