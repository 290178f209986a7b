"""NegBench's multiple choice (Alhamoud et al. 2025): what a scene shows and what it lacks.

In: rendered scenes. Out: the text of the csv.

The true caption stands anywhere among the four. In the released file it is always the first, so
that a model that scores all captions alike wins under an argmax.
"""

from data_builders.phrases import with_article
from data_builders.text_files import csv_table
from data_builders.worlds.scenes.formats.context import SceneContext, SuiteScenes
from data_builders.worlds.scenes.statements import Noun

TEMPLATES = ("positive", "negative", "hybrid")
COLUMNS = ("image_path", "caption_0", "caption_1", "caption_2", "caption_3", "correct_answer",
           "correct_answer_template")  # fmt: skip


def multiple_choice(scenes: SuiteScenes) -> str:
    """Returns the csv: a row for each scene, the templates of the true captions in turn."""
    rows = []
    for k, (image, (shown, missing)) in enumerate(scenes.rows("negbench", _nouns)):
        template = TEMPLATES[k % len(TEMPLATES)]
        true = _captions(shown, missing)[template]
        false = _captions(missing, shown).values()
        captions = scenes.context(image, "negbench order").shuffled([true, *false])
        rows.append((f"images/{image.file}", *captions, captions.index(true), template))
    return csv_table(COLUMNS, rows)


def _captions(shown: Noun, missing: Noun) -> dict[str, str]:
    """What is true of a scene that shows one noun and lacks the other, by template."""
    positive = f"there is {with_article(shown)}"
    return {
        "positive": positive,
        "negative": f"there is no {missing}",
        "hybrid": f"{positive} and no {missing}",
    }


def _nouns(context: SceneContext) -> tuple[Noun, Noun] | None:
    """An object of the scene, and the same with another colour or shape, which the scene lacks."""
    for obj in context.shuffled(context.scene.objects):
        noun = Noun.of(obj)
        for kind in context.shuffled(["color", "shape"]):
            other = context.lacking(noun, kind)
            if other is not None:
                return noun, other
    return None
