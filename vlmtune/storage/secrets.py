"""What is recorded of a run, without credentials.

In: a config or a provenance, of nested mappings and lists. Out: the same without its secrets.
Never: a password, a token or a key in a file that is written, uploaded or logged.
"""

import re
from collections.abc import Mapping
from typing import Any

from vlmtune.storage.remote.address import without_credentials

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CREDENTIAL = re.compile(
    r"(?:^|_)"
    r"(?:(?:api|access|secret|private|account|auth|bearer|session|refresh)*(?:key|token)s?"
    r"|pass(?:words?|wd|phrase|code)?|pwd|secrets?|credentials?|creds?|auth(?:orization)?|bearer"
    r"|cookies?|jwt|sas|sig|signature)"
    r"(?:_|$)"
)


def without_secrets(values: Any) -> Any:
    """Returns values without credentials, for what a run records.

    A text, list or mapping under a name with a word such as "key", "token" or "password" becomes
    None, so that a config read again takes it from where its library looks: the environment. URLs
    lose a password, a query string and parameters, unless these are names of environment variables
    (`$PASSWORD`).

    Args:
        values: Nested mappings, lists and tuples; any other object stays as it is.

    Example:
        >>> without_secrets({"api_key": "abcd", "uri": "https://me:abcd@host/a", "tokens": 77})
        {'api_key': None, 'uri': 'https://host/a', 'tokens': 77}
    """
    if isinstance(values, Mapping):
        return {name: _recorded(str(name), value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        kept = [without_secrets(value) for value in values]
        return kept if isinstance(values, list) else tuple(kept)
    return without_credentials(values) if isinstance(values, str) else values


def _recorded(name: str, value: Any) -> Any:
    numeric = value is None or isinstance(value, bool | int | float)
    plugin = isinstance(value, Mapping) and "class_path" in value  # a name that a user chose
    hidden = _is_credential(name) and not numeric and not plugin
    return None if hidden else without_secrets(value)


def _is_credential(name: str) -> bool:
    words = re.sub(r"\W+", "_", _CAPITAL.sub("_", name)).lower()
    return _CREDENTIAL.search(words) is not None
