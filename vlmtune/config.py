"""Plug-ins that record their arguments, so that a checkpoint or an export can make them again.

In: constructor calls and specs. Out: specs and objects. It never imports a plug-in by itself.
"""

import enum
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from vlmtune.errors import UserError

Spec = dict[str, Any]
# Other kinds of numbers and strings, such as numpy's, are converted: checkpoints refuse them.
PLAIN: dict[type, Callable[[Any], Any]] = {str: str, Integral: int, Real: float}
T = TypeVar("T", bound="Configured")
ABSENT: Any = object()
PACKAGE = Path(__file__).resolve().parent
SHIPPED = ("configs", "checkpoints")
DATA = "VLMTUNE_DATA"
"""Environment variable: the folder that takes the place of `data` in the paths of plug-ins."""
# A wheel holds these folders in the package, a checkout beside it.
ROOT = PACKAGE if (PACKAGE / SHIPPED[0]).is_dir() else PACKAGE.parent


def find_path(path: str | Path) -> Path | None:
    """Returns the absolute path of a file or folder, or None if there is none.

    A relative path is looked for in the working directory; below `configs` and `checkpoints` then
    also among the files that come with vlmtune.

    Example:
        >>> find_path("checkpoints/scenes-clip/vocabulary.txt").name
        'vocabulary.txt'
        >>> find_path("nowhere.yaml")
    """
    name = Path(path).expanduser()
    roots = [Path.cwd()]
    if name.parts and name.parts[0] in SHIPPED:
        roots.append(ROOT)
    for root in roots:
        # An empty path would be the working directory itself.
        if path and (root / name).exists():
            return (root / name).resolve()
    return None


def stems(kind: str) -> list[str]:
    """Returns the names of a kind of plug-in in `configs/plugins`, which the command line takes.

    Example:
        >>> "cola_multi" in stems("benchmarks")
        True
    """
    names: set[str] = set()
    for root in (Path(), ROOT):
        names |= {path.stem for path in (root / "configs/plugins" / kind).glob("*.yaml")}
    return sorted(names)


def data_root() -> Path:
    """The folder of downloaded files: that of the environment variable VLMTUNE_DATA, or `data`."""
    return Path(os.environ.get(DATA) or "data").expanduser()


def in_data_root(value: Any) -> Any:
    """Returns a value with `data/...` moved to the data root, in lists and mappings too.

    Example:
        >>> in_data_root({"path": "photos", "limit": 3})
        {'path': 'photos', 'limit': 3}
    """
    if isinstance(value, str | Path) and str(value).startswith("data/"):
        moved = data_root().joinpath(*Path(value).parts[1:])
        return str(moved) if isinstance(value, str) else moved
    if isinstance(value, dict):
        return {key: in_data_root(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_data_root(item) for item in value]
    return value


class Configured:
    """Base of every plug-in: records the arguments of its constructor in `init_args`.

    A subclass that calls `super().__init__(...)` is recorded with the arguments of the subclass.

    Example:
        >>> class Box(Configured):
        ...     def __init__(self, side: int = 2) -> None:
        ...         self.side = side
        >>> Box(3).spec()["init_args"]
        {'side': 3}
    """

    init_args: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__, super(cls, cls).__init__)  # type: ignore[method-assign]

    def spec(self) -> Spec:
        """Returns `{"class_path": ..., "init_args": ...}`, the form that configs and exports use.

        It holds only values of JSON: paths become strings, tuples lists, members of an enum their
        values, and `Configured` objects their specs. Any other argument is a `UserError`.
        """
        cls = type(self)
        plain: dict[str, Any] = {}
        for name, value in self.__dict__.get("init_args", {}).items():
            plain[name] = _plain(value, f"{name} of {cls.__name__}")
        return {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": plain}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Configured):
        return value.spec()
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    raise UserError(
        f"expected numbers, strings, paths, lists, mappings or configured objects in {name}, "
        f"got {type(value).__name__}: pass one of these"
    )


def _recording(init: Any, parent: Any) -> Any:
    try:
        child = inspect.signature(init, eval_str=True)
    except (AttributeError, NameError, SyntaxError, TypeError):  # only type checkers know them
        child = inspect.signature(init)
    signature = _with_parents_options(child, inspect.signature(parent))

    @functools.wraps(init)
    def wrapper(self: Configured, *args: Any, **kwargs: Any) -> None:
        # The constructor of a parent runs within a child's, which has recorded the arguments.
        if "init_args" not in self.__dict__:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    # As `instantiate` passes them: each by its own name.
                    arguments |= arguments.pop(name)
            arguments.pop("self", None)
            # By way of __dict__, as an nn.Module has no attributes yet.
            self.__dict__["init_args"] = arguments
            if DATA in os.environ:
                # What is recorded stays as it was written, as another machine has another root.
                args = tuple(map(in_data_root, args))
                kwargs = in_data_root(kwargs)
        init(self, *args, **kwargs)

    vars(wrapper)["__signature__"] = signature
    return wrapper


def _with_parents_options(child: inspect.Signature, parent: inspect.Signature) -> inspect.Signature:
    """Replaces `**options` of a constructor by the options of its parent's, by keyword only."""
    *named, last = child.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return child
    inherited: list[inspect.Parameter] = []
    for name, parameter in parent.parameters.items():
        optional = parameter.default is not inspect.Parameter.empty
        if optional and name not in child.parameters:
            inherited.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return child.replace(parameters=[*named, *(inherited or [last])])


def instantiate(spec: Spec, base: type[T]) -> T:
    """Makes the object that a spec describes, which must be a `base`.

    Example:
        >>> from vlmtune.pairs.base import PairPolicy
        >>> spec = {"class_path": "vlmtune.pairs.all_pairs.AllPairs"}
        >>> type(instantiate(spec, PairPolicy)).__name__
        'AllPairs'
    """
    given = spec.get("init_args", {}) if isinstance(spec, dict) else None
    if not isinstance(given, dict):
        raise UserError(
            f"expected class_path and init_args of {base.__name__}, got {str(spec)[:60]!r}: "
            "write both"
        )
    cls = _class(spec.get("class_path", ""), base)
    arguments = {name: _instantiated(value) for name, value in given.items()}
    plugin = cls(**_typed(cls, arguments))
    vars(plugin).setdefault("init_args", {}).update(arguments)  # digests tell 2 from 2.0
    return plugin


def _class(path: Any, base: type[T]) -> type[T]:
    """Imports a class, which must be a `base`."""
    module, _, name = str(path).rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        advice = "name an importable class"
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        if missing and os.path.isfile(f"{module}.py"):
            advice = f"{module}.py lies here, so put PYTHONPATH=. before the command"
        raise UserError(
            f"expected the dotted path of {base.__name__}, got {path!r} ({error}): {advice}"
        ) from error
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        article = "an" if base.__name__[0] in "AEIOU" else "a"
        raise UserError(f"expected {article} {base.__name__}, got {path!r}: name a subclass of it")
    return cls


def _typed(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments as a constructor types them; it must take them."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    signature = inspect.signature(cls)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"expected arguments {signature} for {path}, got {sorted(arguments)}: {error}"
        ) from error
    typed = dict(arguments)
    for name, value in arguments.items():
        # An argument of `**options` has no parameter of its name, and so no type.
        parameter = signature.parameters.get(name)
        if parameter is None or parameter.annotation is parameter.empty:
            continue
        try:
            typed[name] = _converted(value, parameter.annotation)
        except ValueError as error:
            raise UserError(
                f"expected {inspect.formatannotation(parameter.annotation)} as {name} of {path}, "
                f"got {str(value)[:60]!r}: pass that type"
            ) from error
    return typed


def _converted(value: Any, annotation: Any) -> Any:
    """An argument in the type of a parameter; unchanged if pydantic does not know that type."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter  # for --help

    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
        converted = adapter.validate_python(value)
    except (PydanticUserError, NameError, TypeError):
        return value
    # Of an `Iterable` pydantic makes what can be read only once.
    return value if isinstance(converted, Iterator) else converted


def _instantiated(value: Any) -> Any:
    """An argument of a spec, with objects for the specs in it."""
    if isinstance(value, dict):
        # A class that needs no arguments may be written without `init_args`.
        if "class_path" in value and value.keys() <= {"class_path", "init_args"}:
            return instantiate(value, Configured)
        return {key: _instantiated(item) for key, item in value.items()}
    return [_instantiated(item) for item in value] if isinstance(value, list) else value


def differences(here: Any, there: Any, key: str, where: str) -> list[str]:
    """Lists the differences of two specs, or of their parts at the dotted `key`, for an error.

    Of specs of different classes only `class_path` is listed. `where` names the source of `there`.

    Example:
        >>> one = {"class_path": "a.B", "init_args": {"layers": 2, "heads": 4}}
        >>> other = {"class_path": "a.B", "init_args": {"layers": 3, "heads": 4, "bias": True}}
        >>> for line in differences(one, other, "adapter", "the file"):
        ...     print(line)
        adapter.init_args.layers 2 here, 3 in the file
        adapter.init_args.bias nothing here, True in the file
        >>> differences(one, {**other, "class_path": "a.C"}, "adapter", "the file")
        ["adapter.class_path 'a.B' here, 'a.C' in the file"]
    """
    if here == there:
        return []
    if not (isinstance(here, Mapping) and isinstance(there, Mapping)):
        return [f"{key} {_shown(here)} here, {_shown(there)} in {where}"]
    keys = dict.fromkeys([*here, *there])
    if here.get("class_path") != there.get("class_path"):
        keys = {"class_path": None}
    lines: list[str] = []
    for name in keys:
        one = here.get(name, ABSENT)
        other = there.get(name, ABSENT)
        lines += differences(one, other, f"{key}.{name}", where)
    return lines


def _shown(part: Any) -> str:
    return "nothing" if part is ABSENT else repr(part)
