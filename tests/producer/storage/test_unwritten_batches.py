"""Batches that wait for the disk, against a list: rollback points, and writes of the state."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dcp.server.model.versions import Content, Version
from dcp.server.storage.received_parts import ReceivedParts
from dcp.server.storage.saved_vbucket import SavedVbucket, StateOnDisk
from dcp.server.storage.unwritten_batches import UnwrittenBatches
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import VbucketState

SAVED = SavedVbucket(VbucketState.ACTIVE, FailoverLog((FailoverEntry(1, 0),)))


def _batch(first: int, count: int) -> list[Version]:
    return [
        Version(0, b"k", Content(b"v" * seqno), seqno=seqno, rev=1, cas=1)
        for seqno in range(first, first + count)
    ]


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "write", "clear"]), st.integers(1, 4)), max_size=20
)


@given(STEPS)
def test_batches_wait_until_they_are_known_to_be_written(steps: Sequence[tuple[str, int]]) -> None:
    waiting, model, high = UnwrittenBatches(), list[list[Version]](), 0
    for what, number in steps:
        if what == "add":
            model.append(_batch(high + 1, number))
            waiting.add(model[-1])
            high += number
        elif what == "write":
            written = [batch for batch in model if batch[-1].seqno <= high - number]
            assert waiting.due(high - number) == written  # which are still here
            assert waiting.take_written(high - number) == [v for batch in written for v in batch]
            del model[: len(written)]
        else:
            waiting.clear()
            model.clear()
        assert waiting.size_bytes == sum(v.size_bytes for batch in model for v in batch)
        for seqno in range(high + 2):
            ends = [batch[-1].seqno for batch in model if batch[-1].seqno <= seqno]
            assert waiting.ends_down_from(seqno) == ends[::-1]


def test_parts_are_forgotten_with_what_they_are_parts_of() -> None:
    parts = ReceivedParts()
    assert not parts
    for end in (3, 5, 9):
        parts.add(end)
    parts.cut(5)
    assert [end for end in range(12) if end in parts] == [3, 5]
    parts.merge(3)
    assert [end for end in range(12) if end in parts] == [5]
    assert parts
    parts.merge(5)
    assert not parts


def test_after_a_restart_ends_are_known_from_somewhere_on() -> None:
    parts = ReceivedParts()
    parts.known_from = 7
    assert parts
    parts.cut(9)
    assert parts.known_from == 7
    parts.cut(4)
    assert parts.known_from == 4
    parts.merge(10)  # one snapshot, that is whole
    assert not parts


def test_a_state_goes_to_disk_when_items_do_not_tell_what_changed() -> None:
    written = [b""]
    state = StateOnDisk(lambda: written[0])
    assert (state.news_at(1), state.encoded_at(1)) == (b"", b"")
    now = [SAVED]
    state.state_at = lambda _: now[0]
    first = state.news_at(1)
    assert SavedVbucket.decode(first) == replace(SAVED, high_seqnos={})
    assert state.news_at(1) == first  # it was not written
    written[0] = first
    assert state.news_at(2) == b""
    now[0] = replace(SAVED, last_cas=7)  # items tell that
    assert state.news_at(3) == b""
    now[0] = replace(SAVED, base_seqno=7)
    assert state.news_at(4) == now[0].encode()
    written[0] = b"what a cut left"
    assert state.news_at(4) == now[0].encode()
