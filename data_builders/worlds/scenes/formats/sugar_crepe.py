"""SugarCrepe's seven files (Hsieh et al. 2023).

In: rendered scenes. Out: the contents of the files.
"""

from collections.abc import Callable

from data_builders.phrases import both, related, with_article
from data_builders.worlds.scenes.formats.context import (
    Foil,
    SceneContext,
    SuiteScenes,
    replaced_object,
    replaced_relation,
    swapped_objects,
)
from data_builders.worlds.scenes.statements import Noun, stated_kinds

Captions = tuple[str, str] | Foil  # true, false
Entries = dict[str, dict[str, str]]


def subsets(scenes: SuiteScenes) -> dict[str, Entries]:
    """Returns the contents of the seven files by name, at most one row a scene in each."""
    files: dict[str, Entries] = {}
    for name, write in _WRITERS.items():
        entries: Entries = {}
        for image, (true, false, *_) in scenes.rows(name, write):
            entry = {"filename": image.name, "caption": true, "negative_caption": false}
            entries[str(len(entries))] = entry
        files[name] = entries
    return files


def _replace_attribute(context: SceneContext) -> Captions | None:
    for obj in context.shuffled(context.scene.objects):
        for kind in context.shuffled(stated_kinds(obj, context.kinds)):
            noun = Noun.of(obj, [kind])
            if other := context.lacking(noun, kind):
                return f"a photo of {with_article(noun)}", f"a photo of {with_article(other)}"
    return None


def _swap_attribute(context: SceneContext) -> Captions | None:
    for (true, false), *_ in context.exchanges(*context.kinds):
        return both(*true), both(*false)
    return None


def _add_object(context: SceneContext) -> Captions | None:
    for first, name, second in context.relations():
        if added := context.lacking(Noun(first.shape), "shape"):
            text = related(first, name, second)
            return text, f"{text} and {with_article(added)}"
    return None


def _add_attribute(context: SceneContext) -> Captions | None:
    for colored, name, second in context.relations():
        first = Noun(colored.shape)
        for kind in context.shuffled(list(context.kinds)):
            if added := context.lacking(first, kind):
                return related(first, name, second), related(added, name, second)
    return None


_WRITERS: dict[str, Callable[[SceneContext], Captions | None]] = {
    "add_att": _add_attribute, "add_obj": _add_object, "replace_att": _replace_attribute,
    "replace_obj": replaced_object, "replace_rel": replaced_relation, "swap_att": _swap_attribute,
    "swap_obj": swapped_objects,
}  # fmt: skip
