"""Computes the delay before the next attempt: exponential backoff, capped, with jitter.

The jitter separates consumers that lost the same node at once. Each delay lies between half of the
doubled value and all of it, so it never becomes a busy loop.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays for attempts 0, 1, 2, …; ``random`` returns floats in [0, 1)."""

    first_seconds: float
    cap_seconds: float
    random: Callable[[], float]

    def __post_init__(self) -> None:
        if not 0 < self.first_seconds <= self.cap_seconds:
            raise ValueError(
                f"backoff: found first {self.first_seconds} s and cap {self.cap_seconds} s, "
                "expected 0 < first <= cap"
            )

    def delay_seconds(self, attempt: int) -> float:
        """Return the delay after ``attempt`` failed attempts.

        Raises:
            ValueError: a negative attempt.
        """
        if attempt < 0:
            raise ValueError(f"backoff: found attempt {attempt}, expected 0 or more")
        doublings = min(attempt, 62)  # 2**62 times any delay is beyond every cap
        ceiling = min(self.cap_seconds, self.first_seconds * 2.0**doublings)
        return ceiling * (0.5 + 0.5 * self.random())
