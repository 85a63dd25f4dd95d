"""Decides which failures a run survives, and for how long."""

from math import inf
from time import monotonic
from typing import Final, NamedTuple

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
from dcp.lake.spark.failures import known_error

REFUSED_SECONDS: Final = 300.0
"""A running run ends after refusals, or a half-written secret, for this time.

A node that starts, or has left the cluster, listens without buckets and users. Kubernetes takes a
minute or two to bring a new secret to each pod; the cluster has it at once. Two files of keys are
replaced one after the other: a process that has read an old and a new one keeps both for a while.
"""


class _Patience(NamedTuple):
    """The time for which a run survives errors that follow each other."""

    kinds: tuple[type[DcplakeError], ...]
    bounded_seconds: float
    """Of a run with an end; 0: it ends at once."""
    endless_seconds: float
    """Of a run without an end."""
    awaited: str
    """What the run waits for, in the words of its log lines."""


_CLUSTER: Final = (SourceError, RemoteProtocolError)

_PATIENCE: Final = (
    _Patience(
        (SecretError,), REFUSED_SECONDS, REFUSED_SECONDS, "the file of a secret to be replaced"
    ),
    _Patience(
        (AuthenticationError, BucketError),
        REFUSED_SECONDS,
        REFUSED_SECONDS,
        "the cluster to take user, password and bucket",
    ),
    _Patience(
        (StoreRefusedError,), REFUSED_SECONDS, REFUSED_SECONDS, "the object store to take the keys"
    ),
    _Patience((StoreUnavailableError,), REFUSED_SECONDS, inf, "the object store"),
    _Patience(_CLUSTER, 0.0, inf, "the cluster"),
)
"""The first entry with an error's kind counts: an `AuthenticationError` is a `SourceError`, too."""


class Outages:
    """The failures of one step that one thread repeats."""

    def __init__(self) -> None:
        self._refused: tuple[float, float] | None = None
        """The time of the last failure, and the seconds of refusals since the last success."""
        self._is_cut_short = False

    def succeeded(self) -> None:
        self._refused = None

    def outlast(self, failure: Exception, *, is_endless: bool) -> str:
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
        for each in _PATIENCE:
            if isinstance(error, each.kinds):
                seconds = each.endless_seconds if is_endless else each.bounded_seconds
                if not seconds:
                    break
                self._count(error, seconds)
                return f"{each.awaited}: {error}"
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
