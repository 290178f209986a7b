"""The form of the sources: one idea a statement, one class name a file, one opening a module."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for room in ("vlmtune", "data_builders") for path in (ROOT / room).rglob("*.py")]
NAMES = sorted(path.relative_to(ROOT).as_posix() for path in FILES)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@cache
def trees() -> dict[str, ast.Module]:
    """The parsed sources, by name."""
    return {name: ast.parse((ROOT / name).read_text("utf-8")) for name in NAMES}


def dense(tree: ast.Module) -> list[str]:
    """The expressions of a source that hold two ideas, with their lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            if kinds_in(node) & {*COMPREHENSIONS, ast.IfExp}:
                found.append(f"{node.lineno}: a comprehension or a ternary in a comprehension")
        elif isinstance(node, ast.IfExp):
            if ast.IfExp in kinds_in(node):
                found.append(f"{node.lineno}: a ternary in a ternary")
        elif isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(argument, ast.IfExp) for argument in arguments):
                found.append(f"{node.lineno}: a ternary as an argument")
    return found


def kinds_in(node: ast.AST) -> set[type]:
    """The types of all nodes within one."""
    return {type(inner) for inner in ast.walk(node) if inner is not node}


def test_a_statement_holds_one_idea():
    found = {name: dense(tree) for name, tree in trees().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "x = [[b for b in a] for a in c]",
        "x = [a if a else 0 for a in c]",
        "x = a if b else c if d else e",
        "f(a if b else c)",
        "f(key=a if b else c)",
    ],
)
def test_what_is_read_twice_is_found(source):
    assert dense(ast.parse(source))


SHARED = {"Flava"}  # a backbone, and the style that fuses as it does


@pytest.mark.parametrize("package", ["vlmtune", "data_builders"])
def test_a_public_class_name_lives_in_one_file(package):
    places = defaultdict(set)
    for name, tree in trees().items():
        if not name.startswith(f"{package}/"):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(name)
    several = {name: sorted(files) for name, files in places.items() if len(files) > 1}
    assert several.keys() == (SHARED if package == "vlmtune" else set()), several


OPENING = re.compile(r"\bIn: .*\bOut: ", re.DOTALL)
MODULES = [name for name in NAMES if not name.endswith(("__init__.py", "__main__.py"))]


def test_a_module_says_what_comes_in_and_what_goes_out():
    texts = {name: ast.get_docstring(trees()[name]) or "" for name in MODULES}
    # The first line is one sentence.
    assert [name for name, text in texts.items() if not re.match(r"[^\n]+\.(\n|$)", text)] == []
    assert [name for name, text in texts.items() if not OPENING.search(text)] == []
