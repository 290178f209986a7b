"""Files of remote storage.

In: folders in remote storage. Out: whole and checked local files. Never: what they mean.

`address` names remote files, `download` gets one, `cache` keeps them, `folder` joins the three.
"""

CACHE_BYTES = 50 * 2**30  # of local copies
