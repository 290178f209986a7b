"""CLEVR statements: a sentence that is true of a scene, and the same with another answer.

File: `questions_<split>.json` of `vlmtune build questions`, `{"questions": [...]}` in CLEVR's
layout with `statement` and `false_statement` of each question, `false_answer`, and the properties
of its program. In: that file and the images. Out: accuracies, by each property. Never: an answer
that a model writes. Source of questions and properties: Johnson et al. 2017, sections 3 and 4.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.blind_baselines import AnsweredItem, accuracies_without_images
from vlmtune.benchmarks.files import Text, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import MultipleChoice
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.result import Result
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

LAYOUT = "questions with statements"
PROPERTIES = (
    *("structure", "type", "topology", "relation", "size", "effective_size"),
    *("absolute", "relative"),
)


class _Row(TypedDict):
    """A question with its statements; the file holds more."""

    image_filename: Text
    statement: Text
    false_statement: Text
    answer: Text
    false_answer: Text
    family: Text
    structure: Text
    type: Text
    topology: Text
    relation: Text
    size: int
    effective_size: int
    absolute: NotRequired[Text]


class _File(TypedDict):
    """The whole file."""

    questions: list[_Row]


@dataclass(frozen=True)
class Statement(AnsweredItem):
    """An item; `properties` are (name, value) of its program."""

    properties: tuple[tuple[str, str], ...] = ()


class ClevrStatements(MultipleChoice):
    """How often the true statement scores higher than the false one, by property of the question.

    - `accuracy`: over all statements; `accuracy/<family>` and `macro_accuracy` over the families.
    - `accuracy/structure=one_hop`, `/type=count`, `/size=7`, `/effective_size=5`,
      `/topology=tree`, `/relation=spatial` and so on: over the statements with that property.
      `type` is the outermost function, `size` the number of functions of the program,
      `effective_size` that of the smallest pruned program with the same answer. `absolute` says
      whether halves of the image in place of spatial relations give the answer, too;
      `/relative=one_hop` is a structure without the questions that they answer.
    - `type_mode_accuracy`: what the more frequent answer of a type reaches without the image (the
      paper's Q-type mode), `family_mode_accuracy` the same of a family, and `n_gram_accuracy`, what
      a trigram model of true statements reaches; see `blind_baselines`. What lies above the chance
      of 1/2 can be solved without looking.

    Args:
        path: The file that `vlmtune build questions` writes.
        images: Folder with the images.
    """

    full_name = "CLEVR statements"
    asks = "questions"
    citation = "Johnson et al. 2017, CLEVR, section 4 (accuracy by question type)"
    source = "vlmtune download clevr_statements"

    path: str
    images: str

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ClevrStatements":
        rows = [
            ("there is a cube", "there is no cube", "yes", "no", "exist", 3),
            ("the cube is red", "the cube is blue", "red", "blue", "query_color", 4),
            ("there is no ball", "there is a ball", "no", "yes", "exist", 3),
        ]
        keys = ("statement", "false_statement", "answer", "false_answer", "type", "size")
        questions = []
        for i, row in enumerate(rows):
            file = f"val_{i % 2}.png"
            write_image(folder / file, 90 * i, 20, 200)
            question: dict[str, Any] = dict(zip(keys, row, strict=True))
            question |= {
                "image_filename": file,
                "effective_size": 2,
                "family": f"zero_hop-{question['type']}",
                "structure": "zero_hop",
                "topology": "chain",
                "relation": "none",
            }
            questions.append(question)
        content = {"info": {}, "questions": questions}
        path = write_json(folder / "questions_val.json", content)
        return cls(path, str(folder))

    @override
    def read(self) -> list[Statement]:
        content: _File = read_json(self.path, LAYOUT, self.fix, _File)
        items = []
        for row in content["questions"]:
            item = Statement(
                image=ImageRef(Path(self.images, row["image_filename"])),
                candidates=(row["statement"], row["false_statement"]),
                group=row["family"],
                answers=(row["answer"], row["false_answer"]),
                properties=_properties(row),
            )
            items.append(item)
        return items

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        kept: Any = self.items.kept
        clusters = self.items.clusters
        outcomes = torch.tensor(result.outcomes, dtype=torch.float64)
        rows: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, item in enumerate(kept):
            for stated in item.properties:
                rows[stated].append(number)
        # In one order for every model, so that reports can be laid side by side.
        for name, value in sorted(rows, key=_order):
            chosen = torch.tensor(rows[name, value])
            metric = cluster_robust_mean(outcomes[chosen], clusters[chosen], 1 / 2)
            result.metrics[f"accuracy/{name}={value}"] = metric
        groups = {
            "type": [dict(item.properties)["type"] for item in kept],
            "family": [item.group for item in kept],
        }
        baselines = accuracies_without_images(kept, groups, clusters, 1 / 2)
        result.metrics.update(baselines)
        return result


def _order(stated: tuple[str, str]) -> tuple[int, int, str]:
    """In the order of `PROPERTIES`; shorter values first, so that size 9 comes before size 10."""
    name, value = stated
    return PROPERTIES.index(name), len(value), value


def _properties(row: _Row) -> tuple[tuple[str, str], ...]:
    stated = [name for name in PROPERTIES if name in row]
    properties = [(name, str(row[name])) for name in stated]
    # Halves of the image do not answer the question: its structure is reported apart, too.
    if row.get("absolute") == "no":
        properties.append(("relative", row["structure"]))
    return tuple(properties)
