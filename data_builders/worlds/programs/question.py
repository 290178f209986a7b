"""A question about a scene, its program, and the statements that its answer makes true or false.

In: an instance of a family, a scene, a random generator. Out: sentences. Never: a false statement
that is true of the scene.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_builders.phrases import with_article
from data_builders.worlds.programs.effective import effective_question
from data_builders.worlds.programs.program import answer_word, answered_by_halves, encode
from data_builders.worlds.programs.scene_graph import SceneGraph
from data_builders.worlds.programs.search import Instance, SceneSearch
from data_builders.worlds.programs.wording import Wording, fields, number_word


@dataclass(frozen=True)
class Question:
    """A question with its answer, and the same as statements, a true one and a false one.

    `false_answer` is the nearest other one: the other of yes and no, a number one more or one less,
    a value that another object of the scene has if there is one.
    """

    scene: SceneGraph
    instance: Instance
    text: str
    false_answer: str
    statement: str
    false_statement: str

    @property
    def answer(self) -> str:
        """The answer as CLEVR's files state it: "yes", "3", "red"."""
        return answer_word(self.instance.answer)

    def row(self, number: int, family_number: int) -> dict[str, Any]:
        """The question as a row of a questions JSON: CLEVR's keys, then ours."""
        family, program = self.instance.family, self.instance.program
        row = {
            "image_index": self.scene.index,
            "program": encode(program),
            "question_index": number,
            "image_filename": self.scene.image,
            "question_family_index": family_number,
            "split": self.scene.split,
            "answer": self.answer,
            "question": self.text,
            "family": family.name,
            "structure": family.structure,
            "type": family.function,
            "size": len(program),
            "effective_size": len(effective_question(program, self.scene)),
            "topology": family.topology,
            "relation": family.relation,
            "false_answer": self.false_answer,
            "statement": self.statement,
            "false_statement": self.false_statement,
        }
        if self.scene.halves:
            spatial = any(step.function == "relate" for step in program)
            row["absolute"] = "none"
            if spatial:
                by_halves = answered_by_halves(program, self.scene)
                row["absolute"] = answer_word(by_halves)
        return row


def worded(
    instance: Instance, searched: SceneSearch, rng: random.Random, wording: Wording
) -> Question | None:
    """Puts an instance into words: one of its family's templates each, and synonyms.

    None where the wording does not allow the statements that were drawn.
    """
    texts = instance.family.texts
    blanks = fields(instance.descriptions, instance.relations, rng, wording)
    question = rng.choice(texts.questions).format_map(blanks)
    false = _false_answer(instance, searched, rng)
    row = rng.choice(wording.rows(texts))
    true, untrue = (
        _frame(row, answer).format_map(blanks | _answer_fields(answer))
        for answer in (instance.answer, false)
    )
    if not (wording.allows(true) and wording.allows(untrue)):
        return None
    capitalised = question[:1].upper() + question[1:]
    return Question(searched.scene, instance, capitalised, answer_word(false), true, untrue)


def _frame(row: Mapping[str, str], answer: Any) -> str:
    """The template of a row for an answer."""
    keys = {True: "yes", False: "no"} if isinstance(answer, bool) else {0: "zero", 1: "one"}
    return row.get(keys.get(answer, ""), row.get("", ""))


def _answer_fields(answer: Any) -> dict[str, str]:
    word = number_word(answer) if type(answer) is int else str(answer)
    return {"v": word, "av": with_article(word)}


def _false_answer(instance: Instance, searched: SceneSearch, rng: random.Random) -> Any:
    answer = instance.answer
    if isinstance(answer, bool):
        return not answer
    if isinstance(answer, int):
        return answer + rng.choice((-1, 1)) if answer else 1
    attribute = instance.family.function.removeprefix("query_")
    here = sorted({obj[attribute] for obj in searched.scene.objects} - {answer})
    return rng.choice(here or sorted(set(searched.words[attribute]) - {answer}))
