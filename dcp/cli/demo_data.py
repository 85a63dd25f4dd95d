"""The demo's documents: airports of the package ``airportsdata``, and a day of changes to them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from dcp.errors import SetupError

Document = tuple[bytes, bytes]
"""A key and a JSON value."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happens to the airports between the two replications."""

    updated: tuple[Document, ...]
    deleted: tuple[bytes, ...]
    expiring: tuple[bytes, ...]


def airports() -> dict[str, dict[str, object]]:
    """Return the airports by ICAO code.

    Raises:
        SetupError: the package is not installed.

    """
    try:
        import airportsdata
    except ImportError:
        raise SetupError(
            "the demo's documents are missing: install the package airportsdata (make setup does)"
        ) from None
    return {icao: dict(airport) for icao, airport in airportsdata.load("ICAO").items()}


def documents(source: Mapping[str, Mapping[str, object]]) -> list[Document]:
    """Return every airport as a key ``airport_<ICAO>`` and its JSON."""
    return [(_key(icao), _json(airport)) for icao, airport in source.items()]


def changes(
    source: Mapping[str, Mapping[str, object]],
    *,
    updates: int,
    deletes: int,
    expiries: int,
    seed: int,
) -> Changes:
    """Pick airports at random (seeded): some get a new elevation, some close, some expire."""
    chosen = Random(seed).sample(sorted(source), updates + deletes + expiries)
    updated, deleted = chosen[:updates], chosen[updates : updates + deletes]
    return Changes(
        updated=tuple((_key(icao), _json(_resurveyed(source[icao]))) for icao in updated),
        deleted=tuple(map(_key, deleted)),
        expiring=tuple(map(_key, chosen[updates + deletes :])),
    )


def _resurveyed(airport: Mapping[str, object]) -> dict[str, object]:
    elevation = airport["elevation"]
    assert isinstance(elevation, int | float)
    return {**airport, "elevation": elevation + 1, "resurveyed": True}


def _key(icao: str) -> bytes:
    return f"airport_{icao}".encode()


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
