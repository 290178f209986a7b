"""Objects that remember how they were made, so that an export or a checkpoint can make them again."""

import functools
import importlib
import inspect
from typing import Any, TypeVar

from vlmtune.errors import UserError

Spec = dict[str, Any]
T = TypeVar("T", bound="Configured")


class Configured:
    """Base of every plug-in: records the arguments of its constructor in `init_args`.

    The outermost constructor wins, so a subclass that calls `super().__init__(...)` is recorded
    with its own arguments and not with its parent's.

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
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]

    def spec(self) -> Spec:
        """Returns `{"class_path": ..., "init_args": ...}`, the form configs and exports use."""
        cls = type(self)
        return {
            "class_path": f"{cls.__module__}.{cls.__qualname__}",
            "init_args": dict(self.__dict__.get("init_args", {})),
        }


def _recording(init: Any) -> Any:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def wrapper(self: Configured, *args: Any, **kwargs: Any) -> None:
        if "init_args" not in self.__dict__:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            arguments.pop("self", None)
            # nn.Module forbids nothing here: a plain dict needs no registration.
            self.__dict__["init_args"] = arguments
        init(self, *args, **kwargs)

    return wrapper


def instantiate(spec: Spec, base: type[T]) -> T:
    """Makes the object a spec describes.

    Args:
        spec: `{"class_path": dotted path, "init_args": keyword arguments}`.
        base: The class the result must be an instance of.

    Raises:
        UserError: The path does not import, is not a subclass of `base`, or refuses the arguments.

    Example:
        >>> from vlmtune.pairs import AllPairs, PairPolicy
        >>> type(instantiate({"class_path": "vlmtune.pairs.AllPairs"}, PairPolicy)) is AllPairs
        True
    """
    path = spec.get("class_path", "")
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"expected the dotted path of a {base.__name__}, got {path!r} ({error}): correct it"
        ) from error
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        raise UserError(f"expected a {base.__name__}, got {path!r}: name a subclass of it")
    arguments = spec.get("init_args", {})
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"expected arguments {inspect.signature(cls)} for {path}, got {sorted(arguments)}: {error}"
        ) from error
    return cls(**arguments)
