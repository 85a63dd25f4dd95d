"""The keys that a slice of the log touches, and what becomes of each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dcp.lake.store.log_slice import Role


@dataclass(frozen=True, slots=True)
class Winner:
    """The newest live row of one key: its place in the log."""

    key: str
    round: int
    vbucket: int
    epoch: int
    seqno: int


@dataclass(frozen=True, slots=True)
class LostKey:
    """A key without a live row in the slice: it gets its state of the base version."""

    key: str
    vbucket: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key that an apply touches: with a newest live row, or without."""

    winners: tuple[Winner, ...] = ()
    lost: tuple[LostKey, ...] = ()

    def __len__(self) -> int:
        return len(self.winners) + len(self.lost)

    @property
    def names(self) -> list[str]:
        return [*(each.key for each in self.winners), *(each.key for each in self.lost)]

    @property
    def vbuckets(self) -> tuple[int, ...]:
        won = {each.vbucket for each in self.winners}
        return tuple(sorted(won | {each.vbucket for each in self.lost}))


def keys_of(rows: Iterable[Mapping[str, Any]]) -> Keys:
    """Return each key's fate, from its rows of a slice and their roles (`Role`).

    A key is touched unless all its rows are published and live. Its newest live row wins; without
    one it is lost. `dcp.lake.adapters.apply_sql.touched_sql` finds the same for many keys.
    """
    newest: dict[tuple[int, str], tuple[int, int, int]] = {}
    touched: set[tuple[int, str]] = set()
    for row in rows:
        place = row["vbucket"], row["key"]
        if row["role"] != Role.KEPT:
            touched.add(place)
        if row["role"] != Role.UNDONE:
            this = int(row["seqno"]), row["epoch"], row["round"]
            newest[place] = max(this, newest.get(place, this))
    winners, lost = [], []
    for vbucket, key in sorted(touched):
        if (found := newest.get((vbucket, key))) is None:
            lost.append(LostKey(key, vbucket))
        else:
            seqno, epoch, number = found
            winners.append(Winner(key, number, vbucket, epoch, seqno))
    return Keys(tuple(winners), tuple(lost))
