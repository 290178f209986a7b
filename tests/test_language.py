"""Retired words do not come back: identifiers and sentences of package, builders and scripts."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("vlmtune", "data_builders", "scripts")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
# A word of an identifier -> what to call it instead.
IDENTIFIERS = {
    **dict.fromkeys(("share", "shares"), "score shard, fraction or group weight"),
    **dict.fromkeys(("place", "places"), "position, row or layout"),
    **dict.fromkeys(("said", "told", "found", "made"), "a noun that says what it holds"),
    "own": "same_group, or a noun",
    "dice": "a seed or a generator",
    "drawn": "sampled",
    "asked": "requested, or a noun",
    "goal": "target",
    "judge": "score_head",
    "thaw": "unfreeze",
    "blind": "text_only",
    "squares": "paired items",
    "choices": "multiple choice",
    "reads": "spec",
    "trust": "caveats",
}
PHRASES = (
    "to be had",
    "numbers that are none",
    "before it costs",
    *("is said", "are said", "is told", "are told", "is no number", "are no number"),
    r"(?<!there )is no (?!longer|more |better|picture of)",  # say "is not a"
    r"(?<!there )are no (?!longer|more |better|picture of)",
    "is refused",  # say "is an error"
    "it is kept",  # say "reusing it"
    "goes on from",  # say "resumes from"
    "a fault in vlmtune",
    "beside vlmtune",
    "checkpoint of vlmtune",
)


def words(identifier: str) -> set[str]:
    """`SameGroup_mask` has the words same, group and mask."""
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)
    return {part.lower() for part in parts}


def defined(source: str) -> set[str]:
    """Names that a source defines: classes, functions, arguments, variables and attributes."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def sentences(source: str) -> str:
    """Comments and strings of a source, on one line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    strings = " ".join(token.string for token in tokens if token.type in kinds)
    return " ".join(strings.split())


def retired(source: str) -> list[str]:
    """What a source says that was retired."""
    identifiers = []
    for name in sorted(defined(source)):
        for word in words(name) & IDENTIFIERS.keys():
            identifiers.append(f"{name}: say {IDENTIFIERS[word]}")
    text = sentences(source).lower()
    return identifiers + [phrase for phrase in PHRASES if re.search(rf"\b{phrase}\b", text)]


def test_no_retired_word():
    found = {str(path.relative_to(ROOT)): retired(path.read_text("utf-8")) for path in FILES}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("class Share: ...", "Share: say"),
        ("def f(own_rows): ...", "own_rows: say"),
        ("x.place = 1", "place: say"),
        ("# where it is to be had", "to be had"),
        ("raise ValueError('got numbers that are none')", "numbers that are none"),
        ("# such a name is no module", "(?<!there )is no"),
        ("# scores are no probabilities", "(?<!there )are no"),
        ("# any other content is refused", "is refused"),
    ],
)
def test_the_rule_bites(source, word):
    (fault,) = retired(source)
    assert fault.startswith(word)


def test_other_words_pass():
    assert retired("# Is there no file? There is no file. It is no longer there.") == []
    assert retired("shared = x.place\nownership = 'a place'  # sharing") == []
