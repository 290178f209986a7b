"""The one error a person sees: what was expected, what came, what to do."""


class UserError(ValueError):
    """Input that vlmtune cannot use. The command line prints its one line and exits with status 2.

    Example:
        >>> str(UserError("expected a folder of shards, got a file: pass what `build` wrote"))
        'expected a folder of shards, got a file: pass what `build` wrote'
    """


class ImageFileError(UserError):
    """An image file that cannot be read; who knows what it belongs to adds where to get it."""


def reason(error: Exception) -> str:
    """Says in a few words why a file cannot be read, for "expected ..., got ...".

    Example:
        >>> reason(FileNotFoundError(2, "No such file or directory", "a.json"))
        'no such file'
        >>> reason(ValueError("row 3 has no id"))
        'ValueError (row 3 has no id)'
    """
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__} ({error})"
