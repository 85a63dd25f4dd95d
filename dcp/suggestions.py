"""Suggests known words for a misspelt one."""

import re
from collections.abc import Iterable
from decimal import Decimal
from difflib import get_close_matches
from typing import Final

_SECOND_LAKE: Final = (
    "make a second lake whose [filter] has the collections (docs/howto/rebuild-from-replicas.md)"
)
_GONE: Final = {
    "apply.key_literals": "leave it out, dcplake decides by the table's size",
    "seek": "dcplake resync --vbuckets reads vbuckets again, from their beginning",
    "backfill --collections": _SECOND_LAKE,
    "plan --collections": _SECOND_LAKE,
    "serve --replica-lag": "serve with --replicas 1; after `dcplake replication pause` a failover "
    "loses what is written from then on",
    "top --bucket": "leave it out: --producer and --relay take HOST:PORT of its HTTP port",
    "serve --memory-quota": "the producer keeps all documents in memory (docs/reference/memory.md)",
}
"""Settings, commands and options that dcplake does not have, and what to use instead."""


def refusal_of_gone(name: str) -> str | None:
    """Return the message for a name that dcplake does not have, with the replacement; else None."""
    instead = _GONE.get(name)
    return instead and f"found {name}, which dcplake does not have: {instead}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` with the nearest known word; empty if none is near."""
    nearest = get_close_matches(word, list(known), 1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def bytes_meant(text: str) -> str:
    """Return ``, write … for 10 MB`` in bytes; empty if the text is no size with a unit."""
    found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([kmgt])i?b?\s*", text.lower())
    if found is None:
        return ""
    number, unit = Decimal(found[1]), found[2].upper()
    power = " KMGT".index(unit)
    decimal, binary = int(number * 1000**power), int(number * 1024**power)
    return f", write {binary} for {number} {unit}iB or {decimal} for {number} {unit}B"
