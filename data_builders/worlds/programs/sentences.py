"""Text templates: several questions and statements of each structure and outermost function.

In: a structure of references and the function that ends a program. Out: templates whose fields name
parameters. Never: a word of a scene, or a template of CLEVR's own files.

A phrase stands for the set or the object that a chain of references describes, and a frame for what
is asked or stated of it. Each frame with each phrase is a template. Fields of a template: `{A}` a
described object, `{As}` several, `{aA}` with its article, `{r}` a relation, `{v}` an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

Form = Literal["N", "Ns", "aN"]  # "small cube", "small cubes", "a small cube"

PHRASES = {
    "zero_hop": ("{head}",),
    "one_hop": ("{head} {r} the {B}", "{head} that {is} {r} the {B}"),
    "two_hop": ("{head} {r} the {B} that is {s} the {C}",
        "{head} that {is} {r} the {B} {s} the {C}"),
    "three_hop": ("{head} {r} the {B} that is {s} the {C} {t} the {D}",
        "{head} that {is} {r} the {B} {s} the {C} that is {t} the {D}"),
    "single_and": ("{head} that {is} both {r} the {B} and {s} the {C}",
        "{head} that {is} {r} the {B} and also {s} the {C}"),
    "single_or": ("{head} that {is} either {r} the {B} or {s} the {C}",
        "{head} that {is} {r} the {B} or {s} the {C}"),
    "either": ("{any} that {is} either {A or} or {B or}", "{any} that {is} {A or} or {B or}"),
    "same_relate": ("{other} of the same {attribute} as the {B}",
        "{other} that {has} the same {attribute} as the {B}"),
    "same_relate_hop": ("{other} of the same {attribute} as the {B} that is {r} the {C}",
        "{other} that {has} the same {attribute} as the {B} {r} the {C}"),
}  # fmt: skip
_PLAIN_PHRASES = {  # in few different words, for models that know few
    "two_hop": ("{head} {r} the {B} {s} the {C}",),
    "three_hop": ("{head} {r} the {B} {s} the {C} {t} the {D}",),
    "single_and": ("{head} {r} the {B} and {s} the {C}",),
}
_WORDS: dict[Form, dict[str, str]] = {
    "N": {"{head}": "{A}", "{other}": "other {A}", "{any}": "{T}", "{is}": "is", "{has}": "has",
          "{A or}": "{aA}", "{B or}": "{aB}"},
    "Ns": {"{head}": "{As}", "{other}": "other {As}", "{any}": "{Ts}", "{is}": "are",
           "{has}": "have", "{A or}": "{As}", "{B or}": "{Bs}"},
    "aN": {"{head}": "{aA}", "{other}": "another {A}", "{any}": "{aT}", "{is}": "is",
           "{has}": "has", "{A or}": "{aA}", "{B or}": "{aB}"},
}  # fmt: skip


@dataclass(frozen=True)
class Texts:
    """The templates of a family: of questions, of statements, and of statements in few words.

    A row has a statement that is true where the answer is "yes", "no", "one" (of a count), or ""
    for any other; those of one row differ in the answer alone. In `plain` a number means exactly
    that many.
    """

    questions: tuple[str, ...]
    statements: tuple[dict[str, str], ...]
    plain: tuple[dict[str, str], ...] = ()


_QUESTIONS = {
    "count": ("How many {Ns} are there?", "How many {Ns} does the picture show?",
        "What is the number of {Ns}?", "Counting {Ns}, how many do you get?"),
    "exist": ("Is there {aN}?", "Are there any {Ns}?", "Does the picture show {aN}?",
        "Can you see {aN}?"),
    "query_size": ("What size is the {N}?", "What is the size of the {N}?",
        "Which size does the {N} have?", "How large is the {N}?"),
    "query_color": ("What color is the {N}?", "What is the color of the {N}?",
        "Which color does the {N} have?", "How is the {N} colored?"),
    "query_material": ("What is the {N} made of?", "What is the material of the {N}?",
        "Which material is the {N} made of?", "Of what material is the {N}?"),
    "query_shape": ("What shape is the {N}?", "What is the shape of the {N}?",
        "Which shape does the {N} have?", "What is the {N} shaped like?"),
    "equal": ("Is the {N} the same {attribute} as the {M}?",
        "Do the {N} and the {M} have the same {attribute}?",
        "Does the {N} have the same {attribute} as the {M}?",
        "Are the {N} and the {M} equal in {attribute}?"),
    "equal_integer": ("Are there as many {Ns} as {Ms}?",
        "Is the number of {Ns} the same as the number of {Ms}?",
        "Is there an equal number of {Ns} and {Ms}?",
        "Does the number of {Ns} equal that of {Ms}?"),
    "less_than": ("Are there fewer {Ns} than {Ms}?",
        "Is the number of {Ns} less than the number of {Ms}?", "Do you count fewer {Ns} than {Ms}?",
        "Is the number of {Ns} smaller than that of {Ms}?"),
    "greater_than": ("Are there more {Ns} than {Ms}?",
        "Is the number of {Ns} greater than the number of {Ms}?",
        "Do you count more {Ns} than {Ms}?", "Is the number of {Ns} larger than that of {Ms}?"),
}  # fmt: skip
_STATEMENTS: dict[str, tuple[dict[str, str], ...]] = {
    "count": (
        {"": "there are exactly {v} {Ns}", "one": "there is exactly one {N}",
         "zero": "there are no {Ns}"},
        {"": "the picture shows exactly {v} {Ns}", "one": "the picture shows exactly one {N}",
         "zero": "the picture shows no {Ns}"},
        {"": "the number of {Ns} is {v}"},
    ),
    "exist": (
        {"yes": "there is {aN}", "no": "there is no {N}"},
        {"yes": "the picture shows {aN}", "no": "the picture shows no {N}"},
        {"yes": "there is at least one {N}", "no": "there is not one {N}"},
    ),
    "query_size": ({"": "the {N} is {v}"}, {"": "the size of the {N} is {v}"}),
    "query_color": ({"": "the {N} is {v}"}, {"": "the color of the {N} is {v}"}),
    "query_material": (
        {"": "the {N} is made of {v}"},
        {"": "the material of the {N} is {v}"},
    ),
    "query_shape": ({"": "the {N} is {av}"}, {"": "the {N} has the shape of {av}"}),
    "equal": (
        {"yes": "the {N} and the {M} have the same {attribute}",
         "no": "the {N} and the {M} have different {attribute}s"},
        {"yes": "the {N} is the same {attribute} as the {M}",
         "no": "the {N} is not the same {attribute} as the {M}"},
    ),
    "equal_integer": (
        {"yes": "the number of {Ns} equals the number of {Ms}",
         "no": "the number of {Ns} differs from the number of {Ms}"},
        {"yes": "there is an equal number of {Ns} and {Ms}",
         "no": "there is an unequal number of {Ns} and {Ms}"},
    ),
    "less_than": (
        {"yes": "there are fewer {Ns} than {Ms}",
         "no": "there are at least as many {Ns} as {Ms}"},
        {"yes": "the number of {Ns} is less than the number of {Ms}",
         "no": "the number of {Ns} is not less than the number of {Ms}"},
    ),
    "greater_than": (
        {"yes": "there are more {Ns} than {Ms}",
         "no": "there are at most as many {Ns} as {Ms}"},
        {"yes": "the number of {Ns} is greater than the number of {Ms}",
         "no": "the number of {Ns} is not greater than the number of {Ms}"},
    ),
}  # fmt: skip
_PLAIN_STATEMENTS: dict[str, tuple[dict[str, str], ...]] = {
    "count": ({"": "there are {v} {Ns}", "one": "there is one {N}", "zero": "there are no {Ns}"},),
    "query_material": ({"": "the {N} is {v}"},),
}


def templates(function: str, first: str, second: str = "", attribute: str = "") -> Texts:
    """Returns the templates of a family.

    Args:
        function: The outermost function; "equal" for the comparison of any attribute.
        first: The structure of what the function reads, a key of `PHRASES`.
        second: The structure of what it is compared with. The fields of its parameters end in 2.
        attribute: The attribute that two objects have in common or are compared by.

    Example:
        >>> templates("count", "one_hop").questions[1]
        'How many {As} that are {r} the {B} are there?'
        >>> templates("exist", "same_relate", attribute="color").statements[0]["yes"]
        'there is another {A} of the same color as the {B}'
    """
    seconds = PHRASES[second] if second else ("",)
    pairs = [(p, s) for p in PHRASES[first] for s in seconds]
    plain = [(p, s) for p in _PLAIN_PHRASES.get(first, ()) for s in seconds]

    def filled(frame: str, phrase: str, other: str) -> str:
        # {N} stands for the first phrase and {M} for the second, with fields of other numbers.
        for form in _WORDS:
            frame = frame.replace(f"{{{form}}}", _phrase(phrase, form))
            field = f"{{{form}}}".replace("N", "M")
            frame = frame.replace(field, _phrase(other, form).replace("}", "2}"))
        return frame.replace("{attribute}", attribute)

    def rows(
        frames: Sequence[Mapping[str, str]], phrases: Sequence[tuple[str, str]]
    ) -> tuple[dict[str, str], ...]:
        filled_rows = []
        for row, pair in product(frames, phrases):
            filled_rows.append({answer: filled(frame, *pair) for answer, frame in row.items()})
        return tuple(filled_rows)

    frames, further = _STATEMENTS[function], _PLAIN_STATEMENTS.get(function, ())
    questions = tuple(filled(frame, *pair) for frame, pair in product(_QUESTIONS[function], pairs))
    in_few_words = (*rows(frames, plain), *rows(further, [*pairs, *plain]))
    return Texts(questions, rows(frames, pairs), in_few_words)


def _phrase(phrase: str, form: Form) -> str:
    for field, words in _WORDS[form].items():
        phrase = phrase.replace(field, words)
    return phrase
