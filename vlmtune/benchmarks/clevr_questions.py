"""CLEVR's released questions: each with its answer, against the same with other answers.

In: CLEVR's questions and images. Out: items of the multiple-choice rule. Never: an answer that a
model writes.

File: `CLEVR_val_questions.json`, `{"questions": [{"image_filename", "question", "answer",
"program", ...}]}`, some ten questions about each of 15,000 images; the test split has no answers.
Files of `vlmtune build questions` have the same keys. Source: Johnson et al. 2017, CLEVR, sections
3 and 4.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.blind_baselines import AnsweredItem, accuracies_without_images
from vlmtune.benchmarks.files import Text, file_error, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import MultipleChoice
from vlmtune.results.result import Result
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

LAYOUT = "CLEVR's questions with image_filename, question, answer and program"
ATTRIBUTES = {
    "size": ("large", "small"),
    "color": ("blue", "brown", "cyan", "gray", "green", "purple", "red", "yellow"),
    "material": ("metal", "rubber"),
    "shape": ("cube", "cylinder", "sphere"),
}
YES_OR_NO = (
    "exist",
    *(f"equal_{attribute}" for attribute in ATTRIBUTES),
    *("equal_integer", "less_than", "greater_than"),
)
# Type of a question -> its possible answers.
ANSWERS = {
    **dict.fromkeys(YES_OR_NO, ("yes", "no")),
    "count": tuple(map(str, range(11))),
    **{f"query_{attribute}": values for attribute, values in ATTRIBUTES.items()},
}


class _Row(TypedDict):
    """A question; the file holds more."""

    image_filename: Text
    question: Text
    answer: Text
    program: Annotated[list[dict[str, Any]], Field(min_length=1)]


class _File(TypedDict):
    """The whole file."""

    questions: list[_Row]


class ClevrQuestions(MultipleChoice):
    """How often a question with its true answer scores higher than with any other answer.

    A candidate is a text such as "Question: Are there any blue cubes? Answer: yes". CLIP was not
    trained to answer questions, so `clevr_statements`, whose candidates are plain sentences, suits
    it better; this one has CLEVR's own questions.

    - `accuracy`: over all questions; `accuracy/<type>` and `macro_accuracy` over the types.
    - `type_mode_accuracy`: what the most frequent answer of a type reaches without the image (the
      paper's Q-type mode), and `n_gram_accuracy`, what a trigram model of questions with their true
      answers reaches; see `blind_baselines`.

    Args:
        path: The questions.
        images: Folder with the images of the split.
        types: Types of questions, the outermost functions of their programs. By default those whose
            answer is yes or no; the others are "count", with the answers 0 to 10, and
            "query_size", "query_color", "query_material" and "query_shape".
        prompt: The candidate, with {question} and {answer}.
    """

    full_name = "CLEVR questions"
    asks = "questions"
    citation = "Johnson et al. 2017, CLEVR, section 4 (accuracy by question type)"
    source = "vlmtune download clevr_questions"
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"types": tuple(ANSWERS)}

    path: str
    images: str
    types: Sequence[str] = YES_OR_NO
    prompt: str = "Question: {question} Answer: {answer}"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ClevrQuestions":
        rows = [
            ("Are there any cubes?", "yes", "exist"),
            ("Is the ball the same color as the cube?", "no", "equal_color"),
            ("Are there more cubes than balls?", "no", "greater_than"),
            ("How many balls are there?", "1", "count"),
        ]
        questions = []
        for i, (question, answer, function) in enumerate(rows):
            file = f"CLEVR_val_{i % 2:06d}.png"
            write_image(folder / file, 90 * i, 20, 200)
            row = {
                "image_filename": file,
                "question": question,
                "answer": answer,
                "program": [{"function": "scene"}, {"function": function}],
            }
            questions.append(row)
        content = {"info": {}, "questions": questions}
        path = write_json(folder / "CLEVR_val_questions.json", content)
        return cls(path, str(folder))

    @override
    def read(self) -> list[AnsweredItem]:
        content: _File = read_json(self.path, LAYOUT, self.fix, _File)
        items = []
        for number, row in enumerate(content["questions"]):
            last = row["program"][-1]
            # CLEVR's generator writes "type", its released files "function".
            kind = last.get("function", last.get("type"))
            if row["answer"] not in ANSWERS.get(str(kind), ()):
                came = f"the answer {row['answer']!r} to {kind!r} in questions[{number}]"
                raise file_error(self.path, LAYOUT, came, self.source)
            if kind in self.types:
                items.append(self._item(row, str(kind)))
        return items

    def _item(self, row: _Row, kind: str) -> AnsweredItem:
        # The true answer first, then the others in their order.
        true = row["answer"]
        false = [answer for answer in ANSWERS[kind] if answer != true]
        answers = (true, *false)
        # A question may hold braces, so the prompt is not formatted as a whole.
        prompt = self.prompt.replace("{question}", row["question"])
        before, _, after = prompt.partition("{answer}")
        candidates = tuple(f"{before}{answer}{after}" for answer in answers)
        image = ImageRef(Path(self.images, row["image_filename"]))
        return AnsweredItem(image, candidates, kind, answers=answers)

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        items = self.items
        kept: Any = items.kept
        types = {"type": [item.group for item in kept]}
        # Types differ in how many answers they have.
        chance = float(items.chance().mean())
        baselines = accuracies_without_images(kept, types, items.clusters, chance)
        result.metrics.update(baselines)
        return result
