"""The relay's consumers as its strategies see them: numbers, tags, and whether they move.

A consumer is one DCP connection. It names its group's tag by the control ``receiver_group_tag``
or, where its client cannot, by its connection's name, in which ``#gtag=1001`` stands somewhere:
clients put their own behind what they are told. It *moves* while it acknowledges bytes, takes new
ones, or its system does. Who does not, though there is something to send, is stuck. Where a
stream's own window is full only what is acknowledged to that one says that it moves, whatever the
other streams of the connection do.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from dcp.producer.connection import ClientConnection
from dcp.producer.dcp_connection import DcpConnection
from dcp.producer.stream import ActiveStream
from dcp.wire.vocabulary import Status

TAG_CONTROL: Final = b"receiver_group_tag"
_TAG: Final = re.compile(rb"-?[0-9]{1,19}")
_NAME_OF_TAG: Final = b"#gtag="
_SAID: Final = re.compile(rb"#gtag=(-?[0-9]*)")
_I64_MAX: Final = 2**63 - 1


def tag_of(text: bytes) -> int | None:
    """Return a tag in decimals, of 64 bits with a sign; None for anything else."""
    if not _TAG.fullmatch(text):
        return None
    tag = int(text)
    return tag if -_I64_MAX - 1 <= tag <= _I64_MAX else None


def named_tag(name: bytes) -> int | None:
    """Return the tag that a connection's name says; None where it says none.

    Raises:
        ValueError: it says something else, or several.
    """
    if _NAME_OF_TAG not in name:
        return None
    said = _SAID.findall(name)
    tags = {tag_of(text) for text in said}
    if len(tags) != 1 or None in tags:
        found = ", ".join(f"#gtag={text.decode()}" for text in said)
        raise ValueError(
            f"found {found!r} in the connection's name, expected one decimal number of 64 bits, "
            "with a sign"
        )
    return tags.pop()


@dataclass(slots=True)
class _Marks:
    """What moves when a consumer does."""

    values: tuple[int, ...] = ()
    is_moving: bool = True


@dataclass(frozen=True, slots=True)
class _StreamMark:
    """What a stream's own window had acknowledged at a look, while it was full."""

    look: int
    acked_bytes: int
    is_moving: bool


class Receivers:
    """All consumers; used under the bucket's lock."""

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[DcpConnection, int] = WeakKeyDictionary()
        self._tags: WeakKeyDictionary[DcpConnection, int | None] = WeakKeyDictionary()
        self._marks: WeakKeyDictionary[DcpConnection, _Marks] = WeakKeyDictionary()
        self._stream_marks: WeakKeyDictionary[ActiveStream, _StreamMark] = WeakKeyDictionary()
        self._looks = 0
        self._fresh = count(1)
        self.names: dict[int, str] = {}
        """What consumers are called, by number; of all that there ever were, until ``forget``."""

    def number(self, consumer: DcpConnection) -> int:
        """Return the number by which strategies know a consumer."""
        found = self._numbers.get(consumer)
        if found is None:
            found = self._numbers[consumer] = next(self._fresh)
            self.names[found] = consumer.key[1].decode("utf-8", "backslashreplace")
        return found

    def forget_others(self, numbers: Iterable[int]) -> None:
        """Forget the names of all but these, and of who is there."""
        kept = {*numbers, *self._numbers.values()}
        self.names = {number: name for number, name in self.names.items() if number in kept}

    def set_tag(self, consumer: DcpConnection, value: bytes) -> Status:
        """Take the control; EINVAL for what is no tag."""
        tag = tag_of(value)
        if tag is None:
            return Status.EINVAL
        self._tags[consumer] = tag
        return Status.SUCCESS

    def tag(self, consumer: DcpConnection) -> int | None:
        """Return the consumer's tag; None where it names none."""
        if consumer not in self._tags:
            self._tags[consumer] = named_tag(consumer.key[1])
        return self._tags[consumer]

    def look(self, clients: Iterable[ClientConnection]) -> None:
        """Learn who has moved since the last look."""
        self._looks += 1
        for client in clients:
            consumer = client.session.dcp
            if consumer is not None:
                flow = consumer.flow
                is_full = flow.room_bytes <= 0  # NOOPs are taken all the same
                taken_bytes = 0 if is_full else client.taken_bytes
                values = consumer.bytes_sent, flow.acked_bytes, taken_bytes
                before = self._marks.setdefault(consumer, _Marks())
                self._marks[consumer] = _Marks(values, values != before.values)

    def is_moving(self, consumer: DcpConnection, stream: ActiveStream) -> bool:
        """Whether it did anything for a stream between the last two looks."""
        if consumer.waits_for_window(stream):
            return self._is_freeing(consumer, stream)
        marks = self._marks.get(consumer)
        return marks is None or marks.is_moving

    def _is_freeing(self, consumer: DcpConnection, stream: ActiveStream) -> bool:
        """Whether it acknowledges to a stream's full window."""
        mark = self._stream_marks.get(stream)
        if mark is None or mark.look != self._looks:
            acked_bytes = consumer.stream_windows.acked_bytes(stream.opaque)
            is_moving = mark is None or mark.acked_bytes != acked_bytes
            mark = self._stream_marks[stream] = _StreamMark(self._looks, acked_bytes, is_moving)
        return mark.is_moving
