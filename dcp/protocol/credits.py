"""Credits between the stages of a pipeline: what was handed over and is not done with yet.

A stage that takes in work takes a credit of so many bytes or pieces, and releases it when the work
has left it. A credit's account is a gate with two marks:

    gate     opens or closes                          admits
    open     closes when in use >= high               anything, however large
    closed   opens again when in use <= low           nothing

So an item of any size passes when there is any room (as in a DCP window), and in use is at most
high less one, and the largest item. With low below high the gate does not flutter with each item.

A credit is released exactly once. A large item earns parts of it back as its parts are done with,
not only at its end: otherwise one that is larger than its window would wait for itself. Who hands
an item over hands over its credit, too; what he holds is then void. States of a credit:

    state      release    release_part               transfer                  settle
    held       released   held, or an error: beyond  moved, a new one is held  released
    released   error      error                      error                     released
    moved      error      error                      error                     moved

``settle`` is for the way out (``finally``): it releases what is still held here. Time is an
argument, for how long gates were closed; there are no locks: one thread, or a lock around it. The
model is Couchbase Lite's replicator (counters of unfinished revisions, BLIP's acknowledged bytes);
the two marks are those of kv_engine's backfill read-ahead.
"""

from enum import Enum, auto

from dcp.errors import LocalProtocolError
from dcp.types import require_unsigned


class CreditState(Enum):
    """Where a credit is."""

    HELD = auto()
    RELEASED = auto()
    MOVED = auto()


class Credits:
    """The account of one stage: a gate, what is in use, and the totals."""

    __slots__ = (
        "_closed_at",
        "_closed_seconds",
        "_waiting",
        "high",
        "low",
        "name",
        "peak",
        "released_total",
        "second_releases",
        "taken_total",
    )

    def __init__(self, name: str, high: int, low: int) -> None:
        """Make an open gate.

        Raises:
            ValueError: the marks would close it for ever, or never.
        """
        require_unsigned(f"{name}: high", high)
        if not 0 <= low < high:
            raise ValueError(f"{name}: found low {low} and high {high}, expected 0 <= low < high")
        self.name, self.high, self.low = name, high, low
        self.taken_total = self.released_total = self.peak = 0
        self.second_releases = 0
        """Releases that failed; each is a mistake in the code."""
        self._closed_at: float | None = None
        self._closed_seconds = 0.0
        self._waiting: dict[str, None] = {}

    @property
    def in_use(self) -> int:
        """What was taken and not released."""
        return self.taken_total - self.released_total

    @property
    def is_open(self) -> bool:
        """Whether the gate admits anything."""
        return self._closed_at is None

    @property
    def waiting(self) -> tuple[str, ...]:
        """Who was refused and has not come back, the first one first."""
        return tuple(self._waiting)

    def closed_seconds(self, now: float) -> float:
        """How long the gate was closed, in all."""
        if self._closed_at is None:
            return self._closed_seconds
        return self._closed_seconds + max(0.0, now - self._closed_at)

    def try_take(self, amount: int, now: float, who: str = "") -> "Credit | None":
        """Return a credit, or None while the gate is closed: then ``who`` waits."""
        if not self.is_open:
            self._waiting[who] = None
            return None
        return self.take(amount, now, who)

    def take(self, amount: int, now: float, who: str = "") -> "Credit":
        """Return a credit for what is here already, gate or no gate."""
        require_unsigned(f"{self.name}: amount", amount)
        self._waiting.pop(who, None)
        self.taken_total += amount
        self.peak = max(self.peak, self.in_use)
        if self.is_open and self.in_use >= self.high:
            self._closed_at = now
        return Credit(self, amount, who)

    def stop_waiting(self, who: str) -> None:
        """Note that ``who`` is gone and will not come back."""
        self._waiting.pop(who, None)

    def _give_back(self, amount: int, now: float) -> None:
        self.released_total += amount
        if self._closed_at is not None and self.in_use <= self.low:
            self._closed_seconds = self.closed_seconds(now)
            self._closed_at = None


class Credit:
    """What one item holds of a stage's credits."""

    __slots__ = ("_credits", "amount", "holder", "state")

    def __init__(self, credits: Credits, amount: int, holder: str) -> None:
        self._credits = credits
        self.amount = amount
        """What is not released yet."""
        self.holder = holder
        self.state = CreditState.HELD

    def release(self, now: float) -> None:
        """Give back what is left.

        Raises:
            LocalProtocolError: it was released or handed over.
        """
        self._require_held("release")
        self._end(CreditState.RELEASED, now)

    def release_part(self, amount: int, now: float) -> None:
        """Give back a part; the rest is still held, also when it is nothing.

        Raises:
            LocalProtocolError: it was released or handed over, or the part is more than is left.
        """
        self._require_held("release_part")
        if not 0 <= amount <= self.amount:
            self._credits.second_releases += 1
            raise LocalProtocolError(
                f"release_part: {self._credits.name}: found {amount} by {self.holder!r}, "
                f"expected 0 to {self.amount} (what is left)"
            )
        self.amount -= amount
        self._credits._give_back(amount, now)

    def transfer(self, holder: str = "") -> "Credit":
        """Hand over: return the credit as another holds it; this one is void.

        Raises:
            LocalProtocolError: it was released or handed over.
        """
        self._require_held("transfer")
        self.state = CreditState.MOVED
        return Credit(self._credits, self.amount, holder or self.holder)

    def settle(self, now: float) -> None:
        """Give back what is still held here, if it is."""
        if self.state is CreditState.HELD:
            self._end(CreditState.RELEASED, now)

    def _end(self, state: CreditState, now: float) -> None:
        self.state = state
        self._credits._give_back(self.amount, now)
        self.amount = 0

    def _require_held(self, command: str) -> None:
        if self.state is not CreditState.HELD:
            self._credits.second_releases += 1
            raise LocalProtocolError(
                f"{command}: {self._credits.name}: found a credit of {self.holder!r} that is "
                f"{self.state.name.lower()}, expected one that is held"
            )
