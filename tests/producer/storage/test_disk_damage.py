"""A log that is damaged before its end: the part that is kept, and the part that is not."""

import errno
import os
from pathlib import Path

import pytest

from dcp.producer.storage.disk_file import OsFile
from dcp.producer.storage.disk_store import VbucketStore
from tests.producer.disk_items import items, seqnos_of


def _log_of_three(path: Path) -> list[int]:
    """Write three batches; return where each ends."""
    store = VbucketStore.open(OsFile(path), 0)
    ends = []
    for seqno in (1, 2, 3):
        store.write(items([seqno]), b"state")
        ends.append(store.size_bytes)
    return ends


def _flip(path: Path, place: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    return bytes(data)


def test_what_is_cut_from_the_middle_is_kept_beside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "vb_0.log"
    for name in ("vb_0.log.damaged", "vb_0.log.damaged.2"):
        path.unlink(missing_ok=True)
        ends = _log_of_three(path)
        damaged = _flip(path, ends[0] + 20)
        caplog.clear()
        assert seqnos_of(VbucketStore.open(OsFile(path), 0)) == [1]
        assert path.stat().st_size == ends[0]
        assert (tmp_path / name).read_bytes() == damaged[ends[0] :]
        assert f"another begins at byte {ends[1]}): kept as {tmp_path / name};" in caplog.text
        caplog.clear()
        assert seqnos_of(VbucketStore.open(OsFile(path), 0)) == [1]
        assert not caplog.messages


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_torn_last_batch_is_not_kept(tmp_path: Path, *, is_torn: bool) -> None:
    path = tmp_path / "vb_0.log"
    ends = _log_of_three(path)
    if is_torn:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        _flip(path, ends[1] + 20)
    assert seqnos_of(VbucketStore.open(OsFile(path), 0)) == [1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["vb_0.log"]


def test_a_log_of_which_the_rest_cannot_be_kept_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vb_0.log"
    ends = _log_of_three(path)
    damaged = _flip(path, ends[0] + 20)

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_room)
        with pytest.raises(OSError, match="No space left"):
            VbucketStore.open(OsFile(path), 0)
    assert path.read_bytes() == damaged
    assert [each.name for each in tmp_path.iterdir()] == ["vb_0.log"]
