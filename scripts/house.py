"""Prints the rooms of vlmtune, imports between them, and lines (`python -m scripts.house`)."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from scripts.imports import ROOT, imports, room_of, sources

FACE = "__init__"  # vlmtune/__init__.py, which stands above what it imports


def arrows(modules: dict[str, str]) -> set[tuple[str, str]]:
    """Pairs (importer, imported) of different rooms."""
    return {
        (room_of(module), room_of(target.module))
        for module, source in modules.items()
        for target in imports(source, modules)
        if target.module.split(".")[0] == "vlmtune" and room_of(target.module) != room_of(module)
    }


def climbing(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Arrows to the package's face from the rooms below it."""
    below, waiting = set(), [FACE]
    while waiting:
        room = waiting.pop()
        waiting += {imported for importer, imported in pairs if importer == room} - below
        below |= {imported for importer, imported in pairs if importer == room}
    return {(importer, imported) for importer, imported in pairs if imported == FACE} & {
        (room, FACE) for room in below
    }


def floors(pairs: set[tuple[str, str]], rooms: set[str]) -> tuple[list[list[str]], list[str]]:
    """Rooms by floor, each above all rooms that it imports; and a circle, if there is one."""
    graph = {room: {imported for importer, imported in pairs if importer == room} for room in rooms}
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
    rooms = {room_of(module) for module in modules}
    pairs = arrows(modules)
    climbs = climbing(pairs)
    levels, circle = floors(pairs - climbs, rooms)
    print(f"rooms {len(rooms)}, arrows {len(pairs)}, floors {len(levels)}")
    print(f"circles: {' -> '.join(circle) or 'none'}")
    print(f"arrows that climb: {', '.join(f'{a} -> {b}' for a, b in sorted(climbs)) or 'none'}")
    for number, level in enumerate(levels):
        print(f"  floor {number}: {', '.join(level)}")
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
