"""The one error a person sees: what was expected, what came, what to do."""


class UserError(ValueError):
    """Input that vlmtune cannot use. The command line prints its one line and exits with status 2.

    Example:
        >>> str(UserError("expected a folder of shards, got a file: pass what `build` wrote"))
        'expected a folder of shards, got a file: pass what `build` wrote'
    """


class ImageFileError(UserError):
    """An image file that cannot be read; who knows what it belongs to adds where to get it."""
