"""Credits between the stages of a pipeline: what was handed over and is not done with yet.

A stage that takes in work takes a credit of so many bytes or pieces, and releases it when the work
has left it. A credit's account is a gate with two marks:

    gate     opens or closes                          admits
    open     closes when in use >= high               anything, however large
    closed   opens again when in use <= low           nothing

So an item of any size passes when there is any room (as in a DCP window), and in use is at most
high less one, and the largest item. With low below high the gate does not flutter with each item.
Who has a choice asks the account: ``is_open``, ``room``, ``try_take`` or ``try_pass``. ``take`` is
for what is here already and must be counted.

A credit is released exactly once. A large item earns parts of it back as its parts are done with,
not only at its end: otherwise one that is larger than its window would wait for itself. What one
stage hands to the next passes from account to account. States of a credit:

    state      release    release_part               try_pass                     settle
    held       released   held, or an error: beyond  passed, if the next admits   released
    released   error      error                      error                        released
    passed     error      error                      error                        passed

``settle`` is for the way out (``finally``): it releases what is still held here. Errors are counted
(``second_releases``). Time is an argument, for how long gates were closed; there are no locks: one
thread, or a lock around it. The model is Couchbase Lite's replicator (counters of unfinished
revisions, BLIP's acknowledged bytes); the two marks are those of kv_engine's backfill read-ahead.
"""

from enum import Enum, auto

from dcp.errors import LocalProtocolError
from dcp.types import require_unsigned


class CreditState(Enum):
    """Where a credit is."""

    HELD = auto()
    RELEASED = auto()
    PASSED = auto()


class Credits:
    """The account of one stage: a gate, what is in use, and the totals."""

    __slots__ = (
        "_closed_at",
        "_closed_seconds",
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

    @property
    def in_use(self) -> int:
        """What was taken and not released."""
        return self.taken_total - self.released_total

    @property
    def is_open(self) -> bool:
        """Whether the gate admits anything."""
        return self._closed_at is None

    @property
    def room(self) -> int:
        """How much may be taken before the gate closes; 0 while it is closed."""
        return self.high - self.in_use if self.is_open else 0

    def closed_seconds(self, now: float) -> float:
        """How long the gate was closed, in all."""
        closed_at = self._closed_at  # once: another thread may open the gate meanwhile
        if closed_at is None:
            return self._closed_seconds
        return self._closed_seconds + max(0.0, now - closed_at)

    def try_take(self, amount: int, now: float, who: str = "") -> "Credit | None":
        """Return a credit, or None while the gate is closed."""
        return self.take(amount, now, who) if self.is_open else None

    def take(self, amount: int, now: float, who: str = "") -> "Credit":
        """Return a credit for what is here already, gate or no gate."""
        self._add(amount, now)
        return Credit(self, amount, who)

    def set_marks(self, high: int, low: int, now: float) -> None:
        """Give the gate other marks; one that is open closes at once where it has to.

        Raises:
            ValueError: as for a new gate.
        """
        if (high, low) == (self.high, self.low):
            return
        if not 0 <= low < high:
            raise ValueError(
                f"{self.name}: found low {low} and high {high}, expected 0 <= low < high"
            )
        self.high, self.low = high, low
        self._close_if_full(now)
        self._give_back(0, now)

    def count_second_release(self) -> None:
        """Count that somebody released what he does not hold: a mistake in the code."""
        self.second_releases += 1

    def _add(self, amount: int, now: float) -> None:
        require_unsigned(f"{self.name}: amount", amount)
        self.taken_total += amount
        self.peak = max(self.peak, self.in_use)
        self._close_if_full(now)

    def _close_if_full(self, now: float) -> None:
        if self._closed_at is None and self.in_use >= self.high:
            self._closed_at = now

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

    def take_more(self, amount: int, now: float) -> None:
        """Hold more of the same account, for what is here already.

        Raises:
            LocalProtocolError: it was released or passed on.
        """
        self._require_held("take_more")
        self._credits._add(amount, now)
        self.amount += amount

    def release(self, now: float) -> None:
        """Give back what is left.

        Raises:
            LocalProtocolError: it was released or passed on.
        """
        self._require_held("release")
        self._end(CreditState.RELEASED, now)

    def release_part(self, amount: int, now: float) -> None:
        """Give back a part; the rest is still held, also when it is nothing.

        Raises:
            LocalProtocolError: it was released or passed on, or the part is more than is left.
        """
        self._require_held("release_part")
        if not 0 <= amount <= self.amount:
            self._credits.count_second_release()
            raise LocalProtocolError(
                f"release_part: {self._credits.name}: found {amount} by {self.holder!r}, "
                f"expected 0 to {self.amount} (what is left)"
            )
        self.amount -= amount
        self._credits._give_back(amount, now)

    def try_pass(self, account: Credits, now: float) -> "Credit | None":
        """Hand over to the next stage: return what that holds, or None while it admits nothing.

        Raises:
            LocalProtocolError: it was released or passed on.
        """
        self._require_held("try_pass")
        passed = account.try_take(self.amount, now, self.holder)
        if passed is not None:
            self._end(CreditState.PASSED, now)
        return passed

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
            self._credits.count_second_release()
            raise LocalProtocolError(
                f"{command}: {self._credits.name}: found a credit of {self.holder!r} that is "
                f"{self.state.name.lower()}, expected one that is held"
            )
