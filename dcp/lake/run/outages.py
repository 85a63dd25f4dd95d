"""Decides which failures a run survives, and for how long."""

from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Final

from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    RemoteProtocolError,
    SecretError,
    SourceError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dcp.lake.rounds.observer import Wait
from dcp.lake.spark.failures import known_error

REFUSED_SECONDS: Final = 300.0
"""A running run ends after refusals, or a half-written secret, for this time.

A node that starts, or has left the cluster, listens without buckets and users. Kubernetes takes a
minute or two to bring a new secret to each pod; the cluster has it at once. Two files of keys are
replaced one after the other: a process that has read an old and a new one keeps both for a while.
"""


_CLUSTER: Final = (SourceError, RemoteProtocolError)
_REFUSALS: Final = (SecretError, AuthenticationError, BucketError, StoreRefusedError)

_AWAITED: Final[Mapping[tuple[type[DcplakeError], ...], str]] = {
    (SecretError,): "the file of a secret to be replaced",
    (AuthenticationError, BucketError): "the cluster to take user, password and bucket",
    (StoreRefusedError,): "the object store to take the keys",
    (StoreUnavailableError,): "the object store",
    _CLUSTER: "the cluster",
}
"""By kinds of errors, what the run waits for, in the words of its log lines.

The first entry with an error's kind counts: an `AuthenticationError` is a `SourceError`, too.
"""


def _most_seconds(error: DcplakeError, *, is_endless: bool) -> float:
    """Return for how long a run survives such errors that follow each other."""
    if isinstance(error, _REFUSALS):
        return REFUSED_SECONDS
    if is_endless:
        return inf
    return REFUSED_SECONDS if isinstance(error, StoreUnavailableError) else 0.0


class Outages:
    """The failures of one step that one thread repeats."""

    def __init__(self) -> None:
        self._refused: tuple[float, float] | None = None
        """The time of the last failure, and the seconds of refusals since the last success."""
        self._is_cut_short = False

    def succeeded(self) -> None:
        self._refused = None

    def outlast(self, failure: Exception, *, is_endless: bool) -> Wait:
        """Return what the step waits for after a failure that the run survives.

        A run with an end (not ``is_endless``) does not survive a failing cluster. If the store does
        not answer, it goes on for five minutes.

        Raises:
            AuthenticationError, BucketError, SecretError, StoreRefusedError: refused for five
                minutes.
            StoreUnavailableError: a run with an end had no store for five minutes.
            Exception: the failure, if it is of another kind.
        """
        error = failure if isinstance(failure, DcplakeError) else known_error(failure)
        for kinds, awaited in _AWAITED.items():
            if isinstance(error, kinds):
                if most_seconds := _most_seconds(error, is_endless=is_endless):
                    self._count(error, most_seconds)
                    return Wait(f"{awaited}: {error}", is_trouble=True)
                break
        raise failure

    def _count(self, error: DcplakeError, most_seconds: float) -> None:
        now = monotonic()
        failed_at, refused_seconds = self._refused or (now, 0.0)
        if most_seconds < inf:
            # An outage in between does not count. Work that succeeded may have taken long.
            refused_seconds += min(now - failed_at, most_seconds / 2)
            if refused_seconds >= most_seconds:
                raise error
        self._refused = now, refused_seconds
        if not isinstance(error, _CLUSTER):
            self._is_cut_short = True

    def was_cut_short(self) -> bool:
        """Return whether a step failed since the last call, perhaps after a commit.

        Failures of the cluster do not count: they interrupt no step of the lake.
        """
        if not self._is_cut_short:
            return False
        self._is_cut_short = False  # another thread may set it again from here on
        return True
