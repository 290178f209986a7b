"""CLEVR's questions JSON (Johnson et al. 2017) of any scenes.

In: scenes and a seed. Out: questions with programs and answers, the same for the same input.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.shard_builder import Builder
from data_builders.worlds.programs.families import FAMILIES
from data_builders.worlds.programs.generate import Generator
from data_builders.worlds.programs.program import answer_word
from data_builders.worlds.programs.scene_graph import SceneGraph, read_scenes, vocabulary
from data_builders.worlds.programs.wording import Wording, read_vocabulary
from vlmtune.config import find_path
from vlmtune.errors import UserError


class AskingBuilder(Builder):
    """A builder that asks questions of scenes; its constructor calls `choose`."""

    def choose(
        self, path: Path, per_image: int, seed: int, synonyms: bool, vocabulary: Path | None,
        max_words: int | None,
    ) -> None:  # fmt: skip
        """Sets the file of scenes, and the words of questions."""
        self.path, self.per_image, self.seed = Path(path), per_image, seed
        self.vocabulary = vocabulary
        self.wording = Wording(synonyms, read_vocabulary(vocabulary), max_words)

    @override
    def sources(self) -> Mapping[str, Path]:
        words = self.vocabulary and (find_path(self.vocabulary) or Path(self.vocabulary))
        return {file.name: file for file in (self.path, words) if file}

    def generator(self) -> tuple[list[SceneGraph], Generator]:
        """Reads the scenes, and makes what asks."""
        scenes = read_scenes(self.path)
        return scenes, Generator(vocabulary(scenes), self.per_image, self.seed, self.wording)


class QuestionsBuilder(AskingBuilder):
    """Asks CLEVR's question families of scenes (Johnson et al. 2017, section 3).

    Writes `questions_<split>.json`, `{"info": {...}, "questions": [...]}`. A question has CLEVR's
    keys: `image_index`, `image_filename`, `split`, `question`, `answer`, `program` (a list of
    `{"function", "inputs", "value_inputs"}`), `question_family_index` and `question_index`. Beside
    them are `family`, `structure`, `type` (the outermost function), `size` and `effective_size`
    (numbers of functions), `topology`, `relation`, `absolute` (whether halves of the image in the
    place of spatial relations give the same answer), and a `statement` that the answer makes true,
    with the same for a `false_answer`: the benchmark `clevr_statements` reads them.

    Prints the number of questions and of each answer by family.

    Args:
        path: `CLEVR_<split>_scenes.json`, or `scenes_<split>.json` of the embedded world.
        per_image: Largest number of questions of an image; CLEVR asks 10.
        seed: Seed of the questions; equal seeds give equal bytes.
        synonyms: Whether to use synonyms such as "block" for cube, as CLEVR does.
        vocabulary: File with the words that statements may have, one a line, such as
            `checkpoints/scenes-clip/vocabulary.txt`; families that they cannot state are left out.
        max_words: Largest number of words of a statement; the small CLIP reads 22.
    """

    def __init__(
        self, path: Path, per_image: PositiveInt = 10, seed: int = 0, synonyms: bool = True,
        vocabulary: Path | None = None, max_words: int | None = None,
    ) -> None:  # fmt: skip
        self.choose(path, per_image, seed, synonyms, vocabulary, max_words)

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        scenes, generator = self.generator()
        numbers = {family.name: number for number, family in enumerate(FAMILIES)}
        split = scenes[0].split
        info = {"split": split, "version": "1.0", "date": "", "generator": "vlmtune"}
        with (folder / f"questions_{split}.json").open("w", encoding="utf-8") as file:
            file.write(f'{{"info":{json.dumps(info)},"questions":[\n')
            for number, question in enumerate(generator.questions(scenes)):
                family = question.instance.family
                row = question.row(number, numbers[family.name])
                start = ",\n" if number else ""
                file.write(start + json.dumps(row, separators=(",", ":")))
                for count in ("questions", f"{family.structure} questions"):
                    self.counts[count] += 1
                self.counts[f"answers {question.answer}"] += 1
                tick()
            file.write("\n]}\n")
        if not self.counts["questions"]:
            raise UserError(
                f"expected scenes to ask questions of in {self.path}, got none with objects: "
                "use other scenes"
            )
        print(answer_table(generator.answers), file=sys.stderr)


def answer_table(answers: Mapping[str, Counter[Any]]) -> str:
    """A line for each family: its number of questions and of each answer.

    Example:
        >>> print(answer_table({"zero_hop-exist": Counter({True: 2, False: 1})}))
        zero_hop-exist  3: no 1, yes 2
    """
    width = max(map(len, answers))
    lines = []
    for name, counts in answers.items():
        listed = ", ".join(f"{answer_word(answer)} {counts[answer]}" for answer in sorted(counts))
        lines.append(f"{name:<{width}}  {counts.total()}: {listed}")
    return "\n".join(lines)
