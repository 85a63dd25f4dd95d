"""Tracks the relay's consumers for flow control: their numbers, group tags and signs of life.

A consumer is one DCP connection. It sets its group tag with the control ``receiver_group_tag``. A
client that cannot do so puts ``#gtag=1001`` into its connection name: clients append their own text
to a configured name, separated by anything but a letter, a digit or a dot.

A consumer shows life if it acknowledges, if its TCP connection takes bytes, or if there is nothing
to send. If a stream's own window is full, only acknowledgements to that window count. Silence up to
the ack interval means nothing: kv_engine and dcplake acknowledge after a fifth of the window, or
after five seconds.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from dcp.protocol.flow_strategy import group_tag_of
from dcp.protocol.negotiation import GROUP_TAG
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.model.connection_name import shown_name
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.streams.active_stream import ActiveStream

TAG_CONTROL: Final = GROUP_TAG.encode()
_NAME_OF_TAG: Final = b"#gtag="
_SAID: Final = re.compile(rb"#gtag=([-+]?[.0-9A-Za-z]*)")
"""Also matches malformed tags, for the error message."""


def named_tag(name: bytes) -> int | None:
    """Return the tag in a connection name, or None.

    Raises ValueError if it is malformed, or the name has several.
    """
    if _NAME_OF_TAG not in name:
        return None
    said = _SAID.findall(name)
    tags = {group_tag_of(text.decode()) for text in said}
    if len(tags) != 1 or None in tags:
        found = ", ".join(f"#gtag={text.decode()}" for text in said)
        raise ValueError(
            f"found {found!r} in the connection's name, expected one signed decimal number of "
            "64 bits, such as #gtag=1001 or #gtag=-5"
        )
    return tags.pop()


@dataclass(frozen=True, slots=True)
class _Progress:
    """A consumer's counters, and since when they are unchanged."""

    values: tuple[int, ...]
    since_ns: int


class Receivers:
    """All consumers; call it with the bucket's lock held. Times are in nanoseconds."""

    def __init__(self, ack_ns: int, timeout_ns: int) -> None:
        """``ack_ns``: the time that a consumer may take to acknowledge processed bytes.

        ``timeout_ns``: a consumer counts as silent after so long without a sign of life.
        """
        self._ack_ns = ack_ns
        self._timeout_ns = timeout_ns
        self._numbers: WeakKeyDictionary[DcpConnection, int] = WeakKeyDictionary()
        self._tags: WeakKeyDictionary[DcpConnection, int | None] = WeakKeyDictionary()
        self._progress: WeakKeyDictionary[DcpConnection, _Progress] = WeakKeyDictionary()
        self._full: WeakKeyDictionary[DcpConnection, dict[int, _Progress]] = WeakKeyDictionary()
        self._looked_at_ns = 0
        self._fresh = count(1)
        self.names: dict[int, str] = {}
        """Names by number, of departed consumers too, until ``forget_others``."""

    def number(self, consumer: DcpConnection) -> int:
        """Return a consumer's number in strategies; a new consumer gets the next one."""
        found = self._numbers.get(consumer)
        if found is None:
            found = self._numbers[consumer] = next(self._fresh)
            self.names[found] = shown_name(consumer.key[1])
        return found

    def forget_others(self, numbers: Iterable[int]) -> None:
        """Forget the names of departed consumers, except these numbers."""
        kept = {*numbers, *self._numbers.values()}
        self.names = {number: name for number, name in self.names.items() if number in kept}

    def set_tag(self, consumer: DcpConnection, value: bytes) -> bool:
        """Set a consumer's tag; return False if the value is no tag."""
        tag = group_tag_of(value.decode("ascii", "replace"))
        if tag is not None:
            self._tags[consumer] = tag
        return tag is not None

    def tag(self, consumer: DcpConnection) -> int | None:
        if consumer not in self._tags:
            self._tags[consumer] = named_tag(consumer.key[1])
        return self._tags[consumer]

    def note_progress(
        self, clients: Iterable[AcceptedConnection], now_ns: int
    ) -> list[tuple[DcpConnection, int | None]]:
        """Record which consumers have moved since the last call, or have nothing to send.

        Return consumers that were silent until now: (consumer, None) for all its streams, or
        (consumer, opaque) for the streams with a window of their own.
        """
        found = list[tuple[DcpConnection, int | None]]()
        self._looked_at_ns = now_ns
        for client in clients:
            consumer = client.session.dcp
            if consumer is None:
                continue
            flow = consumer.flow
            # A stuck client still takes NOOPs, so bytes count only while the window has room.
            is_full = flow.room_bytes <= 0
            drained_bytes = 0 if is_full else client.drained_bytes
            values = consumer.bytes_sent, flow.acked_bytes, drained_bytes
            last = self._progress.get(consumer)
            if last is None or last.values != values or not consumer.ready:
                self._progress[consumer] = _Progress(values, now_ns)
                if last is not None and self._was_silent(last, now_ns):
                    found.append((consumer, None))
            before = self._full.get(consumer, {})
            progress = self._full[consumer] = self._full_windows(consumer, before, now_ns)
            found += [
                (consumer, opaque)
                for opaque, last in before.items()
                if progress.get(opaque) is not last and self._was_silent(last, now_ns)
            ]
        return found

    def _was_silent(self, last: _Progress, now_ns: int) -> bool:
        return last.since_ns + self._ack_ns + self._timeout_ns < now_ns

    def was_away(self, away_ns: int) -> None:
        """Do not count a time in which the relay's process was stopped as silence."""
        for consumer, last in self._progress.items():
            self._progress[consumer] = _Progress(last.values, last.since_ns + away_ns)
        for progress in self._full.values():
            for opaque, last in progress.items():
                progress[opaque] = _Progress(last.values, last.since_ns + away_ns)

    def _full_windows(
        self, consumer: DcpConnection, before: dict[int, _Progress], now_ns: int
    ) -> dict[int, _Progress]:
        """Return the full windows by opaque, with the time of the last acknowledgement."""
        found = {}
        for opaque in consumer.ready.full_windows:
            values = (consumer.stream_windows.acked_bytes(opaque),)
            last = before.get(opaque)
            is_same = last is not None and last.values == values
            found[opaque] = last if last is not None and is_same else _Progress(values, now_ns)
        return found

    def heard_at_ns(self, consumer: DcpConnection, stream: ActiveStream, now_ns: int) -> int:
        """Return a consumer's last sign of life, with regard to one stream.

        It is now if the consumer moved at the last look. Else it is the latest time at which an
        acknowledgement was due, because the consumer may still owe one.
        """
        if consumer.ready.waits_for_window(stream):
            last = self._full.get(consumer, {}).get(stream.opaque)
        else:
            last = self._progress.get(consumer)
        return self._heard(last, now_ns)

    def connection_heard_at_ns(self, consumer: DcpConnection, now_ns: int) -> int:
        """Return a consumer's last sign of life in any of its streams."""
        return self._heard(self._progress.get(consumer), now_ns)

    def _heard(self, last: _Progress | None, now_ns: int) -> int:
        if last is None or last.since_ns == self._looked_at_ns:
            return now_ns
        return min(now_ns, last.since_ns + self._ack_ns)

    def states(
        self, consumers: Iterable[DcpConnection], now_ns: int
    ) -> dict[int, tuple[int | None, bool]]:
        return {
            self.number(each): (
                self.tag(each),
                self.connection_heard_at_ns(each, now_ns) + self._timeout_ns < now_ns,
            )
            for each in consumers
        }
