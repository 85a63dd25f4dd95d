"""The parts that all statistics groups share.

A group is generated while the client reads, and the bucket can change meanwhile. So a group copies
each list over which it iterates, and refuses before its first statistic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dcp.server.bucket.assembly import Bucket
from dcp.server.model.refused_error import RefusedError
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import U16_MAX
from dcp.wire.vocabulary import Status

Statistic = tuple[str, int | str | float]
"""Name as in kv_engine, and value; STAT shows booleans as ``true`` or ``false``."""

_MOST_DIGITS = len(str(U16_MAX))


@dataclass(frozen=True, slots=True)
class StatisticsRequest:
    """A request for one group at one node."""

    bucket: Bucket
    node: int
    argument: str = ""
    """Text after the group's name."""
    value: bytes = b""
    """The request's JSON."""

    def vbuckets(self) -> list[Vbucket]:
        return self.bucket.table.of_node(self.node)

    def vbucket(self, number: str) -> Vbucket:
        """Return the vbucket with a decimal number.

        Raises:
            RefusedError: EINVAL for a bad number, NOT_MY_VBUCKET if the node does not
                have it (kv_engine ``ep_engine.cc``, getValidVBucketFromString).
        """
        is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        if not is_number or int(number) > U16_MAX:
            raise RefusedError(
                Status.EINVAL, f"vbucket: found {number!r}, expected a number up to {U16_MAX}"
            )
        found = self.bucket.table.at(int(number), self.node)
        if found is None:
            raise RefusedError(
                Status.NOT_MY_VBUCKET, f"vbucket {number}: this node does not have it"
            )
        return found

    def vbuckets_asked_for(self) -> list[Vbucket]:
        """Return the vbucket that the argument names; without an argument, all of the node.

        Raises RefusedError like ``vbucket``.
        """
        return [self.vbucket(self.argument)] if self.argument else self.vbuckets()


Group = Callable[[StatisticsRequest], Iterator[Statistic]]
"""Answers a request; raises RefusedError at the call, not while it is read."""


def without_argument(group: Group) -> Group:
    """Wrap a group that accepts no argument: with one, its key is unknown."""

    def only_by_name(question: StatisticsRequest) -> Iterator[Statistic]:
        if question.argument:
            raise RefusedError(
                Status.KEY_ENOENT, f"argument: found {question.argument!r}, expected none"
            )
        return group(question)

    return only_by_name


def text_of(value: float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
