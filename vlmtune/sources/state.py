"""What of an order is in the data folder already, by the ledger and the sizes of files.

In: orders and the ledger. Out: what is here, and the bytes that are not. Never: the network.
"""

from typing import Literal

from vlmtune.sources.addresses import HAND
from vlmtune.sources.ledger import BY_PERSON, Ledger
from vlmtune.sources.order import Order
from vlmtune.sources.source import Conversion, SourceFile, SourceImages
from vlmtune.storage.folder import digest
from vlmtune.storage.remote.address import without_credentials
from vlmtune.storage.remote.download import checksum_of

State = Literal["whole", "partly", "not here"]


def archive_name(file: SourceFile) -> str:
    """Name of an archive and of its list of members: it differs where any of its facts does."""
    facts = file.model_dump(include={"url", "path", "checksum", "unpack", "members", "strip"})
    return digest(facts)[:16]


def image_files(images: SourceImages) -> str:
    """Name of the list of single images that came for a benchmark."""
    return f"images-{images.of}-{digest(images.folder)[:8]}"


def conversion_files(order: Order, conversion: Conversion, ledger: Ledger) -> str:
    """Name of the list of files that a conversion made of the files as they are now."""
    # Another content of a file is another name, so the conversion is made again.
    came = []
    for file in order.source.files:
        arrival = ledger.get(ledger.root / file.path)
        if arrival is not None:
            came.append(arrival.sha256)
    return f"made-{digest([conversion.model_dump(), came])[:16]}"


def is_here(file: SourceFile, ledger: Ledger) -> bool:
    """Whether a file, or all members of an archive, came and have their sizes still."""
    if file.unpack is not None:
        return ledger.has_members(archive_name(file))
    path = ledger.root / file.path
    arrival = ledger.get(path)
    if arrival is None or not ledger.has(path):
        return False
    # The YAML may name a new version since the file came.
    if file.bytes not in (None, arrival.bytes):
        return False
    kind, _, expected = (file.checksum or "").partition(":")
    if kind:
        # The ledger spares reading large files again; others are small.
        known = arrival.sha256 if kind == "sha256" else checksum_of(path, kind)
        return known == expected
    addresses = list(map(without_credentials, file.urls))
    from_person = arrival.address == BY_PERSON or arrival.address.startswith(HAND)
    return from_person or arrival.address in addresses


def missing_bytes(order: Order, ledger: Ledger) -> int:
    """Bytes that an order adds to the disk, as far as they are known."""
    needed = 0
    for file in order.files:
        if is_here(file, ledger):
            continue
        # Members of an archive, of about the same size, are on the disk beside it for a while.
        copies = 1 if file.unpack is None else 2
        needed += copies * (file.size or 0)
    for images in order.images:
        if not ledger.has_members(image_files(images)):
            needed += images.bytes  # about as many: sizes of single images are unknown
    return needed


def state(order: Order, ledger: Ledger) -> State:
    """How much of an order is here."""
    here = [is_here(file, ledger) for file in order.files]
    for conversion in order.conversions:
        here.append(ledger.has_members(conversion_files(order, conversion, ledger)))
    for images in order.images:
        here.append(ledger.has_members(image_files(images)))
    if here and all(here):
        return "whole"
    return "partly" if any(here) else "not here"
