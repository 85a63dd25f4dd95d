"""A log that is damaged: a torn end is cut off, anything else is refused and left as it is."""

import re
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import OsFile
from dcp.server.storage.disk_store import VbucketStore
from tests.producer.disk_items import items, seqnos_of
from tests.producer.kept_clusters import flush_all

FILE_HEADER_BYTES = 40


def _disk_log_of_three(path: Path) -> list[int]:
    """Write three batches; return where each ends."""
    store = VbucketStore(OsFile(path), 0)
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


def test_a_disk_log_that_is_damaged_before_its_last_batch_is_refused(tmp_path: Path) -> None:
    """Wherever it is; nobody's documents go, and nothing is written beside."""
    path = tmp_path / "vb_0.log"
    begin, middle, _ = _disk_log_of_three(path)
    whole = path.read_bytes()
    for place in range(FILE_HEADER_BYTES, middle):
        path.write_bytes(whole)
        damaged = _flip(path, place)
        start, follows = (FILE_HEADER_BYTES, begin) if place < begin else (begin, middle)
        message = rf"^{re.escape(str(path))}: the batch at byte {start} is damaged: found .*, "
        message += rf"expected .*, and another batch follows at byte {follows}; restore the folder"
        with pytest.raises(DiskFormatError, match=message):
            VbucketStore(OsFile(path), 0)
        assert path.read_bytes() == damaged
    assert [each.name for each in tmp_path.iterdir()] == ["vb_0.log"]


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_torn_last_batch_is_cut_off_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_torn: bool
) -> None:
    path = tmp_path / "vb_0.log"
    ends = _disk_log_of_three(path)
    if is_torn:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        _flip(path, ends[1] + 20)
    assert seqnos_of(VbucketStore(OsFile(path), 0)) == [1, 2]
    assert path.stat().st_size == ends[1]
    assert [each.name for each in tmp_path.iterdir()] == ["vb_0.log"]
    assert not caplog.messages


def test_serve_refuses_a_damaged_folder_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=1, data_folder=tmp_path)) as cluster:
        for number in range(3):
            cluster.set(b"k%d" % number, b"1")
            flush_all(cluster)
    _flip(tmp_path / "vb_0.log", FILE_HEADER_BYTES + 20)
    assert main(["serve", "--data", str(tmp_path), "--vbuckets", "1", "--port", "0"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "vb_0.log: the batch at byte 40 is damaged: found " in told[0]
