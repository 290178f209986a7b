"""vlmtune: fine-tunes vision-language models so that they understand compositions.

`vlmtune.load(folder)` gives a model that scores images against texts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmtune.export import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    # Imported on use: `vlmtune --help` must answer before torch could have been imported.
    if name == "load":
        from vlmtune.export import load

        return load
    raise AttributeError(f"module 'vlmtune' has no attribute {name!r}")
