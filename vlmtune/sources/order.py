"""From names on the command line to what is wanted of each source.

In: names of sources and of plug-ins. Out: an `Order` for each source. Never: the network.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from vlmtune.benchmarks.base import Benchmark
from vlmtune.config import find_path, instantiate
from vlmtune.errors import UserError
from vlmtune.sources.source import Conversion, DataSource, SourceFile, SourceImages, sources
from vlmtune.storage.files import reading


@dataclass(frozen=True)
class Order:
    """What is wanted of one source.

    Attributes:
        name: Name of the source.
        source: The source.
        readers: The plug-ins whose files are wanted; empty for all files.
        whole: Whether archives with all images are wanted instead of single images.
    """

    name: str
    source: DataSource
    readers: frozenset[str] = frozenset()
    whole: bool = False

    def _wants(self, of: Iterable[str]) -> bool:
        needed_by = set(of)
        if not self.readers or not needed_by:
            return True
        return not self.readers.isdisjoint(needed_by)

    @property
    def files(self) -> list[SourceFile]:
        """The files that are wanted."""
        return [file for file in self.source.files if self._wants(file.of)]

    @property
    def conversions(self) -> list[Conversion]:
        """What has to be made of them."""
        return [conversion for conversion in self.source.convert if self._wants(conversion.of)]

    @property
    def images(self) -> list[SourceImages]:
        """The images that are fetched one by one."""
        wanted = [images for images in self.source.images if self._wants([images.of])]
        if not self.whole:
            return wanted
        # The archives that hold them are orders of their own, see `orders`.
        return [images for images in wanted if not images.whole]


def orders(names: Iterable[str], whole: bool = False) -> list[Order]:
    """Finds the sources of all names, each once.

    A name is a source, or a plug-in that reads one. With `whole` the archives of images are sources
    too, before those whose images they hold.

    Example:
        >>> [order.name for order in orders(["sugar_crepe"], whole=True)]
        ['coco_val2017', 'sugar_crepe']
    """
    readers: dict[str, set[str]] = {}
    complete = set()  # sources that were named themselves
    for name in names:
        name = source_name(name)
        if name in sources():
            complete.add(name)
            readers.setdefault(name, set())
            continue
        for source in _serving(name):
            readers.setdefault(source, set()).add(name)
    by_source: dict[str, Order] = {}
    for name, wanted in readers.items():
        source = sources()[name]
        # Who names the source itself wants all of its files, whatever else is named.
        chosen = frozenset() if name in complete else frozenset(wanted)
        if whole:
            images_of = Order(name, source, chosen).images
            archives = [archive for images in images_of for archive in images.whole]
            first = {archive: Order(archive, sources()[archive]) for archive in archives}
            by_source = first | by_source
        by_source.setdefault(name, Order(name, source, chosen, whole))
    return list(by_source.values())


def source_name(name: str) -> str:
    """The name of a source; of published weights the short one will do.

    Example:
        >>> source_name("negclip"), source_name("published:negclip"), source_name("aro")
        ('weights_negclip', 'weights_negclip', 'aro')
    """
    name = name.replace("published:", "weights_")  # as `--model` names weights
    weights = f"weights_{name}"
    return weights if name not in sources() and weights in sources() else name


def _serving(plugin: str) -> list[str]:
    """The sources that a plug-in reads."""
    serving = [name for name, source in sources().items() if plugin in source.names]
    if serving:
        return serving
    known = {name.removeprefix("weights_") for name in sources()}
    for source in sources().values():
        known.update(source.names)
    near = difflib.get_close_matches(plugin, sorted(known), 1)
    advice = "`vlmtune download --list` shows all"
    if near:
        advice = f"did you mean {near[0]!r}? {advice}"
    raise UserError(f"expected the name of a source or of what reads one, got {plugin!r}: {advice}")


def default_reader(name: str) -> Benchmark:
    """The benchmark as its YAML in `configs/plugins/benchmarks` has it."""
    path = Path("configs/plugins/benchmarks", f"{name}.yaml")
    with reading(path, "a benchmark"):
        text = (find_path(path) or path).read_text(encoding="utf-8")
        spec = yaml.safe_load(text)
    return instantiate(spec, Benchmark)  # type: ignore[type-abstract]


def needed_images(images: SourceImages, benchmark: Benchmark, root: Path) -> list[Path]:
    """The image files of a benchmark below the folder of `images`, each once.

    The files of the benchmark are read, the images need not be there.
    """
    folder = root / images.folder
    listed = [image.path for image in benchmark.listed().images]
    paths = []
    for path in dict.fromkeys(listed):
        if not path.is_relative_to(folder):
            continue
        # A file of a stranger must not name a path outside the folder.
        if ".." in path.relative_to(folder).parts:
            raise UserError(
                f"expected images below {folder}, got {path} in the files of {benchmark.name}: "
                "get its files again"
            )
        paths.append(path)
    return paths
