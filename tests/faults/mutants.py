"""Seeded faults in the code, each run against the tests of its room: which does a suite catch?

    python -m tests.faults.mutants --per-room 3 --seed 0 --out mutants.json

A fault negates a comparison, exchanges + and -, * and /, or `and` and `or`, or drops a `not`.
In: rooms of vlmtune and data_builders. Out: the file and line of each fault, and whether a test
failed. Never: a changed file; the faults are written to a copy of the checkout.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SWAPS = {
    ast.Lt: (" < ", " >= "),
    ast.LtE: (" <= ", " > "),
    ast.Gt: (" > ", " <= "),
    ast.GtE: (" >= ", " < "),
    ast.Eq: (" == ", " != "),
    ast.NotEq: (" != ", " == "),
    ast.In: (" in ", " not in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.Add: (" + ", " - "),
    ast.Sub: (" - ", " + "),
    ast.Mult: (" * ", " / "),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
}
SECONDS = 900  # of one run of tests


@dataclass(frozen=True)
class Fault:
    """One change of one line, counted from 1, of a file relative to the checkout."""

    file: str
    line: int
    old: str
    new: str


def faults(file: Path) -> list[Fault]:
    """Returns every fault that one line of a file can have."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        replaced = _replacement(node)
        if replaced is None or node.lineno != node.end_lineno:
            continue
        old, new = replaced
        line = lines[node.lineno - 1]
        start, stop = node.col_offset, node.end_col_offset
        part = line[start:stop]
        if part.count(old) == 1:
            changed = line[:start] + part.replace(old, new) + line[stop:]
            name = file.relative_to(ROOT).as_posix()
            found.append(Fault(name, node.lineno, line, changed))
    return found


def _replacement(node: ast.AST) -> tuple[str, str] | None:
    """What to replace within an expression, and by what."""
    match node:
        case ast.Compare(ops=[operator]) | ast.BinOp(op=operator) | ast.BoolOp(op=operator):
            return SWAPS.get(type(operator))
        case ast.UnaryOp(op=ast.Not()):
            return "not ", ""
    return None


def rooms() -> dict[str, list[str]]:
    """Returns the rooms, each with the tests that are run for it."""
    found = {}
    for folder in sorted((ROOT / "vlmtune").iterdir()):
        if (folder / "__init__.py").is_file():
            name = folder.name
            paths = [f"tests/{name}", f"tests/contracts/test_{name}.py", f"vlmtune/{name}"]
            found[f"vlmtune/{name}"] = [path for path in paths if (ROOT / path).exists()]
    for name in ("corpora", "worlds"):
        found[f"data_builders/{name}"] = [f"tests/data_builders/{name}", f"data_builders/{name}"]
    # What a benchmark reports and how everything gets a model is tested by those who use it.
    found["vlmtune/results"] = ["tests/benchmarks", "tests/report"]
    return found


def chosen(per_room: int, seed: int) -> list[tuple[Fault, list[str]]]:
    """Returns the same faults for the same sources and seed, as many of each room."""
    picked = []
    for room, tests in rooms().items():
        every = [fault for file in sorted((ROOT / room).rglob("*.py")) for fault in faults(file)]
        draw = random.Random(f"{seed}/{room}")
        for fault in draw.sample(every, min(per_room, len(every))):
            picked.append((fault, tests))
    return picked


def outcome(fault: Fault, tests: list[str], copy: Path, marker: str) -> str:
    """Returns "caught", "survived" or "timeout" of a fault in a copy of the checkout."""
    file = copy / fault.file
    before = file.read_text(encoding="utf-8")
    lines = before.splitlines()
    assert lines[fault.line - 1] == fault.old, f"{fault.file}:{fault.line} has changed"
    lines[fault.line - 1] = fault.new
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    if marker:
        command += ["-m", marker]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        file.write_text(before, encoding="utf-8")
    return "survived" if done.returncode == 0 else "caught"


def main() -> None:
    """Runs the faults and prints how many are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-room", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--marker", default="", help="as pytest's -m; all tests without it")
    parser.add_argument("--tests", type=Path, help="another tests folder, such as an older one")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", "_build", "*cache*")
        shutil.copytree(ROOT, copy, ignore=ignored)
        if options.tests is not None:
            shutil.rmtree(copy / "tests")
            shutil.copytree(options.tests, copy / "tests")
        for fault, tests in chosen(options.per_room, options.seed):
            result = outcome(fault, tests, copy, options.marker)
            rows.append({**vars(fault), "outcome": result})
            print(f"{result}: {fault.file}:{fault.line}: {fault.new.strip()}", flush=True)
            options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    caught = sum(row["outcome"] != "survived" for row in rows)
    print(f"{caught} of {len(rows)} faults caught")


if __name__ == "__main__":
    main()
