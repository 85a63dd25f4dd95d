"""Tracks the relay's consumers for its flow-control strategies: numbers, tags, signs of life.

A consumer is one DCP connection. It names its group's tag by the control ``receiver_group_tag`` or,
where its client cannot, by its connection's name, in which ``#gtag=1001`` stands somewhere: clients
append their own text to a configured name, after anything but a letter, a digit or a dot.

Signs of life: it acknowledges, its TCP buffer takes bytes, or there is nothing to send. Where a
stream's own window is full only what is acknowledged to that one is a sign, whatever the other
streams of the connection do. Silence up to the ack interval proves nothing (kv_engine and dcplake
acknowledge when a fifth of the window is done with, or five seconds after the last time).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from dcp.protocol.negotiation import GROUP_TAG
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.model.connection_name import shown_name
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.streams.stream import ActiveStream
from dcp.wire.vocabulary import Status

TAG_CONTROL: Final = GROUP_TAG.encode()
_TAG: Final = re.compile(rb"-?[0-9]{1,19}")
_NAME_OF_TAG: Final = b"#gtag="
_SAID: Final = re.compile(rb"#gtag=([-+]?[.0-9A-Za-z]*)")
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


@dataclass(frozen=True, slots=True)
class _Stand:
    """The counters of a consumer, and the time since which they have not changed."""

    values: tuple[int, ...]
    since_ns: int


class Receivers:
    """All consumers; used under the bucket's lock. Times are nanoseconds of the caller's clock."""

    def __init__(self, ack_ns: int, timeout_ns: int) -> None:
        """Begin with no consumer.

        ``ack_ns``: how long one may take to acknowledge what it has done with; ``timeout_ns``:
        how long one may be unheard before it is silent.
        """
        self._ack_ns = ack_ns
        self._timeout_ns = timeout_ns
        self._numbers: WeakKeyDictionary[DcpConnection, int] = WeakKeyDictionary()
        self._tags: WeakKeyDictionary[DcpConnection, int | None] = WeakKeyDictionary()
        self._stands: WeakKeyDictionary[DcpConnection, _Stand] = WeakKeyDictionary()
        self._full: WeakKeyDictionary[DcpConnection, dict[int, _Stand]] = WeakKeyDictionary()
        self._looked_at_ns = 0
        self._fresh = count(1)
        self.names: dict[int, str] = {}
        """The consumers' names, by number; of all that there ever were, until ``forget``."""

    def number(self, consumer: DcpConnection) -> int:
        """Return the number by which strategies know a consumer."""
        found = self._numbers.get(consumer)
        if found is None:
            found = self._numbers[consumer] = next(self._fresh)
            self.names[found] = shown_name(consumer.key[1])
        return found

    def forget_others(self, numbers: Iterable[int]) -> None:
        """Forget all consumers but these."""
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

    def note_progress(
        self, clients: Iterable[AcceptedConnection], now_ns: int
    ) -> list[tuple[DcpConnection, int | None]]:
        """Note which consumers have moved since the last call, or have nothing to send.

        Return the consumers that had been silent: with all their streams (None), or with those of
        an opaque.
        """
        found = list[tuple[DcpConnection, int | None]]()
        self._looked_at_ns = now_ns
        for client in clients:
            consumer = client.session.dcp
            if consumer is None:
                continue
            flow = consumer.flow
            is_full = flow.room_bytes <= 0  # NOOPs are taken all the same
            taken_bytes = 0 if is_full else client.taken_bytes
            values = consumer.bytes_sent, flow.acked_bytes, taken_bytes
            stand = self._stands.get(consumer)
            if stand is None or stand.values != values or not consumer.ready:
                self._stands[consumer] = _Stand(values, now_ns)
                if stand is not None and self._was_silent(stand, now_ns):
                    found.append((consumer, None))
            before = self._full.get(consumer, {})
            stands = self._full[consumer] = self._full_windows(consumer, before, now_ns)
            found += [
                (consumer, opaque)
                for opaque, stand in before.items()
                if stands.get(opaque) is not stand and self._was_silent(stand, now_ns)
            ]
        return found

    def _was_silent(self, stand: _Stand, now_ns: int) -> bool:
        return stand.since_ns + self._ack_ns + self._timeout_ns < now_ns

    def was_away(self, away_ns: int) -> None:
        """Exclude the time in which the relay's process was halted from all silences."""
        for consumer, stand in self._stands.items():
            self._stands[consumer] = _Stand(stand.values, stand.since_ns + away_ns)
        for stands in self._full.values():
            for opaque, stand in stands.items():
                stands[opaque] = _Stand(stand.values, stand.since_ns + away_ns)

    def _full_windows(
        self, consumer: DcpConnection, before: dict[int, _Stand], now_ns: int
    ) -> dict[int, _Stand]:
        """Return since when which windows of streams are full and get no acknowledgement."""
        found = {}
        for opaque in consumer.ready.full_windows:
            values = (consumer.stream_windows.acked_bytes(opaque),)
            stand = before.get(opaque)
            is_same = stand is not None and stand.values == values
            found[opaque] = stand if stand is not None and is_same else _Stand(values, now_ns)
        return found

    def heard_at_ns(self, consumer: DcpConnection, stream: ActiveStream, now_ns: int) -> int:
        """Return a consumer's last sign of life, as far as a stream is concerned.

        Now, if it stood still for no whole time between two looks. Else the acknowledgement that
        it may still owe us counts as given when it was due at the latest.
        """
        if consumer.ready.waits_for_window(stream):
            stand = self._full.get(consumer, {}).get(stream.opaque)
        else:
            stand = self._stands.get(consumer)
        return self._heard(stand, now_ns)

    def connection_heard_at_ns(self, consumer: DcpConnection, now_ns: int) -> int:
        """Return a consumer's last sign of life, whichever stream it concerns."""
        return self._heard(self._stands.get(consumer), now_ns)

    def _heard(self, stand: _Stand | None, now_ns: int) -> int:
        if stand is None or stand.since_ns == self._looked_at_ns:
            return now_ns
        return min(now_ns, stand.since_ns + self._ack_ns)

    def states(
        self, consumers: Iterable[DcpConnection], now_ns: int
    ) -> dict[int, tuple[int | None, bool]]:
        """Return by number the state that groups use: a consumer's tag, and if it is silent."""
        return {
            self.number(each): (
                self.tag(each),
                self.connection_heard_at_ns(each, now_ns) + self._timeout_ns < now_ns,
            )
            for each in consumers
        }
