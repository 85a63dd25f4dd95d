"""The parts of every statistics group: names with values, the question, refusals.

A group is generated while the client reads it, and much may change meanwhile: it copies the list
that it iterates over, and reads each item when its turn comes. Refusals come before the first
statistic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dcp.errors import DcplakeError
from dcp.server.bucket.bucket import Bucket
from dcp.server.vbucket.vbucket import Vbucket
from dcp.types import U16_MAX
from dcp.wire.vocabulary import Status

Statistic = tuple[str, int | str | float]
"""A name as kv_engine has it, and a value; truth is told as true or false."""

_MOST_DIGITS = len(str(U16_MAX))


class StatisticsRefusedError(DcplakeError):
    """The group is refused with ``status``; the text says what was found and expected."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class StatisticsRequest:
    """A statistics request: ``argument`` follows the group's name, ``value`` is its JSON."""

    bucket: Bucket
    node: int
    argument: str = ""
    value: bytes = b""

    def vbuckets(self) -> list[Vbucket]:
        """Return the vbuckets of the node, copies too."""
        return self.bucket.table.of_node(self.node)

    def vbucket(self, number: str) -> Vbucket:
        """Return the vbucket of a number in decimal.

        Raises:
            StatisticsRefusedError: EINVAL for no such number, NOT_MY_VBUCKET where the node has it
                not (kv_engine ``ep_engine.cc``, getValidVBucketFromString).
        """
        is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        if not is_number or int(number) > U16_MAX:
            raise StatisticsRefusedError(
                Status.EINVAL, f"vbucket: found {number!r}, expected a number up to {U16_MAX}"
            )
        found = self.bucket.table.at(int(number), self.node)
        if found is None:
            raise StatisticsRefusedError(Status.NOT_MY_VBUCKET, f"vbucket {number}: not here")
        return found

    def vbuckets_asked_for(self) -> list[Vbucket]:
        """Return the vbucket that the argument names; all of the node where it names none.

        Raises:
            StatisticsRefusedError: as ``vbucket``.
        """
        return [self.vbucket(self.argument)] if self.argument else self.vbuckets()


Group = Callable[[StatisticsRequest], Iterator[Statistic]]
"""Answers a question; raises StatisticsRefusedError at once, not while it is read."""


def without_argument(group: Group) -> Group:
    """Return a group without arguments: with one the key is unknown."""

    def only_by_name(question: StatisticsRequest) -> Iterator[Statistic]:
        if question.argument:
            raise StatisticsRefusedError(
                Status.KEY_ENOENT, f"argument: found {question.argument!r}, expected none"
            )
        return group(question)

    return only_by_name


def text_of(value: float | str) -> str:
    """Return a value as text for STAT."""
    return str(value).lower() if isinstance(value, bool) else str(value)
