"""The demo's documents: airports of the package ``airportsdata``, and a day of changes to them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import Final

from dcp.errors import SetupError
from dcp.installation import how_to_install

Document = tuple[bytes, bytes]
"""A key and a JSON value."""


_LOST_NEW: Final = 4
_LOST_UPDATES: Final = 3
_LOST_DELETES: Final = 2
_KEPT: Final = 3


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of the airports between the two replications."""

    updated: tuple[Document, ...]
    deleted: tuple[bytes, ...]
    expiring: tuple[bytes, ...]

    def untouched(
        self, stored: Mapping[str, Mapping[str, object]]
    ) -> dict[str, Mapping[str, object]]:
        """Return the airports that none of these changes."""
        changed = {key for key, _ in self.updated} | {*self.deleted, *self.expiring}
        return {icao: each for icao, each in stored.items() if _key(icao) not in changed}


def airports() -> dict[str, dict[str, object]]:
    """Return the airports by ICAO code.

    Raises:
        SetupError: the package is not installed.

    """
    try:
        import airportsdata
    except ImportError:
        raise SetupError(
            "the demo's documents are missing (the package airportsdata):"
            f" run {how_to_install('demo')}."
        ) from None
    return {icao: dict(airport) for icao, airport in airportsdata.load("ICAO").items()}


def documents(stored: Mapping[str, Mapping[str, object]]) -> list[Document]:
    """Return every airport as a key ``airport_<ICAO>`` and its JSON."""
    return [(_key(icao), _json(airport)) for icao, airport in stored.items()]


def changes(
    stored: Mapping[str, Mapping[str, object]],
    *,
    updates: int,
    deletes: int,
    expiries: int,
    seed: int,
) -> Changes:
    """Pick airports at random (seeded): some get a new elevation, some close, some expire."""
    chosen = Random(seed).sample(sorted(stored), updates + deletes + expiries)
    updated, deleted = chosen[:updates], chosen[updates : updates + deletes]
    return Changes(
        updated=tuple((_key(icao), _json(_resurveyed(stored[icao]))) for icao in updated),
        deleted=tuple(map(_key, deleted)),
        expiring=tuple(map(_key, chosen[updates + deletes :])),
    )


@dataclass(frozen=True, slots=True)
class LostWrites:
    """The writes to a node right before it dies; ``kept`` is written on the new branch."""

    new: tuple[Document, ...]
    updated: tuple[Document, ...]
    deleted: tuple[bytes, ...]
    kept: tuple[Document, ...]


def lost_writes(
    stored: Mapping[str, Mapping[str, object]],
    is_there: Callable[[bytes], bool],
    *,
    seed: int,
) -> LostWrites:
    """Pick writes that only one node gets (seeded).

    ``is_there`` says which keys that node holds.
    """
    codes = [icao for icao in sorted(stored) if is_there(_key(icao))]
    chosen = Random(seed).sample(codes, _LOST_UPDATES + _LOST_DELETES + _KEPT)
    updated, rest = chosen[:_LOST_UPDATES], chosen[_LOST_UPDATES:]
    imagined = (f"PHANTOM{number}" for number in count(1))
    new = islice((icao for icao in imagined if is_there(_key(icao))), _LOST_NEW)
    return LostWrites(
        new=tuple(
            (_key(icao), _json({"icao": icao, "name": "Never was", "country": "XX"}))
            for icao in new
        ),
        updated=tuple((_key(icao), _json(_resurveyed(stored[icao]))) for icao in updated),
        deleted=tuple(map(_key, rest[:_LOST_DELETES])),
        kept=tuple((_key(icao), _json(_resurveyed(stored[icao]))) for icao in rest[_LOST_DELETES:]),
    )


def _resurveyed(airport: Mapping[str, object]) -> dict[str, object]:
    elevation = airport["elevation"]
    assert isinstance(elevation, int | float)
    return {**airport, "elevation": elevation + 1, "resurveyed": True}


def _key(icao: str) -> bytes:
    return f"airport_{icao}".encode()


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
