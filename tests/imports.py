"""Which modules import which, read from their sources."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Import(NamedTuple):
    """A module that is imported, and whether that happens as soon as the importer is."""

    module: str
    at_once: bool


def name_of(path: Path) -> str:
    """`vlmtune/data/loader.py` is `vlmtune.data.loader`, `data/__init__.py` is `data`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def sources(*packages: str) -> dict[str, str]:
    """Source of each module of these packages, by name."""
    modules: dict[str, str] = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            modules[name_of(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    return modules


@cache
def offered() -> dict[str, str]:
    """The module behind each name that a room of vlmtune offers, such as `vlmtune.model.load`."""
    modules = {}
    for stub in sorted((ROOT / "vlmtune").glob("*/__init__.pyi")):
        room = name_of(stub.relative_to(ROOT))
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
                modules |= {f"{room}.{name}": f"{room}.{node.module}" for name in names}
    return modules


def imports(source: str, modules: dict[str, str]) -> set[Import]:
    """Everything that a source imports, also inside functions and by `importlib`."""
    imported = set()
    for module, name, at_once in _statements(source):
        full = f"{module}.{name}" if name else module
        full = offered().get(full, full)
        imported.add(Import(full if full in modules else module, at_once))
    return imported


@cache
def _statements(source: str) -> list[tuple[str, str, bool]]:
    """Module, name and whether it happens at once, of each import; a source is parsed once."""
    found = []

    def visit(node: ast.AST, at_once: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, "", at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import: write the full path"
            found.extend((str(node.module), alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) == "import_module":
            if isinstance(node.args[0], ast.Constant):
                found.append((str(node.args[0].value), "", at_once))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            at_once = False
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, at_once and not inside)

    visit(ast.parse(source), True)
    return found


def _name(function: ast.expr) -> str | None:
    """The last name of what is called: "f" of `f(...)` and of `a.b.f(...)`."""
    return getattr(function, "attr", getattr(function, "id", None))


def package_of(module: str) -> str:
    """`vlmtune.data.sample_order` belongs to `data`, `vlmtune` to `__init__`."""
    return [*module.split("."), "__init__"][1]
