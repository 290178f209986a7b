"""Statements that answers to CLEVR's questions make true or false, as shards.

In: scenes with images. Out: images with statements. Never: a false statement that is true.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import inside
from data_builders.shard_builder import Record, ShardBuilder, image_group
from data_builders.worlds.programs.question import Question
from data_builders.worlds.questions import AskingBuilder


class StatementsBuilder(AskingBuilder, ShardBuilder):
    """One image with statements that the answers to CLEVR's questions make true or false a record.

    Of each question the true statement is a caption, and the same with another answer its hard
    negative: "there are exactly three small things left of the red cube" and "... exactly two ...".
    The questions are those that `build questions` asks with the same arguments.

    Args:
        path: `CLEVR_<split>_scenes.json`, or `scenes_<split>.json` of the embedded world.
        images: Folder with the files that `image_filename` names.
        per_image: Largest number of questions of an image, of which each gives two statements.
        seed: Seed of the questions.
        synonyms: Whether to use synonyms such as "block" for cube.
        vocabulary: File with the words that statements may have, one a line, such as
            `checkpoints/scenes-clip/vocabulary.txt`; families that they cannot state are left out.
        max_words: Largest number of words of a statement; the small CLIP reads 22.
    """

    def __init__(
        self, path: Path, images: Path, per_image: PositiveInt = 4, seed: int = 0,
        synonyms: bool = True, vocabulary: Path | None = None, max_words: int | None = None,
        records_per_shard: PositiveInt = 1000,
    ) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        self.choose(path, per_image, seed, synonyms, vocabulary, max_words)
        self.images = Path(images)

    @override
    def records(self) -> Iterator[Record]:
        scenes, generator = self.generator()
        for number, scene in enumerate(scenes):
            file = inside(self.images, scene.image, self.path, f"scenes[{number}]")
            questions = list(generator.questions([scene]))
            if not self.exists(file):
                continue
            if not questions:
                self.counts["skipped: no question"] += 1
                continue
            texts = self._texts(questions)
            self.counts["statements: true"] += sum(texts.values())
            self.counts["statements: false"] += len(texts) - sum(texts.values())
            yield image_group(file.stem, texts), [file]

    def _texts(self, questions: list[Question]) -> dict[str, bool]:
        """The statements; the same one may come of two questions."""
        truths: dict[str, set[bool]] = defaultdict(set)
        for question in questions:
            truths[question.statement].add(True)
            truths[question.false_statement].add(False)
            self.counts[f"{question.instance.family.structure} questions"] += 1
        assert all(len(values) == 1 for values in truths.values())
        return {text: min(values) for text, values in truths.items()}
