"""Documents in a data folder are their owner's alone, whatever the process's umask allows."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from tests.producer.kept_clusters import flush_all

Open = Callable[..., ProducerCluster]


@pytest.fixture
def _everybody_may_read() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {file.name: stat.filemode(file.stat().st_mode) for file in (folder, *folder.iterdir())}


@pytest.mark.usefixtures("_everybody_may_read")
def test_only_the_owner_reads_a_data_folder(open_cluster: Open, tmp_path: Path) -> None:
    folder = tmp_path / "above" / "data"
    first = open_cluster(folder, vbuckets=2)
    first.set(b"gone", b"document")
    first.delete(b"gone")
    flush_all(first)
    first.purge_tombstones(0)  # this writes the logs anew
    for n in range(60):
        first.set(b"k%d" % n, b"document")
        if n % 20 == 19:
            flush_all(first)
    first.stop()
    found = modes(folder)
    assert found.pop("data") == "drwx------"
    assert found.pop("lock") == "-rw-r--r--", "who holds it is for others to read"
    assert found == dict.fromkeys(("bucket.json", "vb_0.log", "vb_1.log"), "-rw-------")
