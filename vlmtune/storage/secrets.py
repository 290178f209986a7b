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
    (`$PASSWORD`). Any other object stays as it is.

    Example:
        >>> without_secrets({"api_key": "abcd", "uri": "https://me:abcd@host/a", "tokens": 77})
        {'api_key': None, 'uri': 'https://host/a', 'tokens': 77}
    """
    if isinstance(values, Mapping):
        return {name: _recorded(str(name), value) for name, value in values.items()}
    if isinstance(values, list):
        return list(map(without_secrets, values))
    if isinstance(values, tuple):
        return tuple(map(without_secrets, values))
    if isinstance(values, str):
        return without_credentials(values)
    return values


def _recorded(name: str, value: Any) -> Any:
    is_number = value is None or isinstance(value, bool | int | float)
    is_plugin = isinstance(value, Mapping) and "class_path" in value  # a name that a user chose
    may_be_secret = not is_number and not is_plugin
    if may_be_secret and _is_credential(name):
        return None
    return without_secrets(value)


def _is_credential(name: str) -> bool:
    # "apiKey" and "api-key" become "api_key", so that one pattern of words knows them.
    separated = _CAPITAL.sub("_", name)
    words = re.sub(r"\W+", "_", separated).lower()
    return _CREDENTIAL.search(words) is not None
