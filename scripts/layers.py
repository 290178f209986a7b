"""Prints the packages of vlmtune by layer, the imports between them, and lines of code."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from scripts.imports import ROOT, imports, package_of, sources

FACE = "__init__"  # vlmtune/__init__.py, which stands above what it imports


def imports_between(modules: dict[str, str]) -> set[tuple[str, str]]:
    """Pairs (importer, imported) of different packages."""
    return {
        (package_of(module), package_of(target.module))
        for module, source in modules.items()
        for target in imports(source, modules)
        if target.module.split(".")[0] == "vlmtune"
        and package_of(target.module) != package_of(module)
    }


def upward(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Imports of the root package from packages below it."""
    below, waiting = set(), [FACE]
    while waiting:
        package = waiting.pop()
        waiting += {imported for importer, imported in pairs if importer == package} - below
        below |= {imported for importer, imported in pairs if importer == package}
    return {(importer, imported) for importer, imported in pairs if imported == FACE} & {
        (package, FACE) for package in below
    }


def layers(pairs: set[tuple[str, str]], packages: set[str]) -> tuple[list[list[str]], list[str]]:
    """Packages by layer, each above all that it imports; and a circle, if there is one."""
    graph = {
        package: {imported for importer, imported in pairs if importer == package}
        for package in packages
    }
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        return [], error.args[1]
    levels = []
    while sorter.is_active():
        levels.append(sorted(sorter.get_ready()))
        sorter.done(*levels[-1])
    return levels, []


def line_count(path: Path) -> int:
    """Lines of a file."""
    return path.read_text(encoding="utf-8").count("\n")


def main() -> None:
    """Prints everything."""
    modules = sources("vlmtune")
    packages = {package_of(module) for module in modules}
    pairs = imports_between(modules)
    upwards = upward(pairs)
    levels, circle = layers(pairs - upwards, packages)
    print(f"packages {len(packages)}, imports {len(pairs)}, layers {len(levels)}")
    print(f"circles: {' -> '.join(circle) or 'none'}")
    print(
        f"imports that point up: {', '.join(f'{a} -> {b}' for a, b in sorted(upwards)) or 'none'}"
    )
    for number, level in enumerate(levels):
        print(f"  layer {number}: {', '.join(level)}")
    files = {}
    for folder in ("vlmtune", "data_builders", "scripts", "tests"):
        lines = {path: line_count(path) for path in (ROOT / folder).rglob("*.py")}
        files |= lines
        print(f"{folder}: {sum(lines.values()):,} lines in {len(lines)} files")
    print("longest files:")
    for path in sorted(files, key=lambda path: -files[path])[:10]:
        print(f"  {files[path]:5d} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
