"""Changes of a bucket's manifest on a disk that fails: all or nothing, whichever write it is."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.bucket_states import set_state
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.manifest_changes import CreateCollection, CreateScope, DropScope
from dcp.server.model.manifest import Manifest
from dcp.server.storage.disk_file import Data, OsFile
from dcp.wire.vocabulary import VbucketState

VBUCKETS = 3
CHANGES = (CreateScope("s"), CreateCollection("s", "a"), CreateCollection("s", "b"))


def _known(bucket: ProducerBucket) -> list[tuple[Manifest, int]]:
    """What the bucket and each vbucket stand at."""
    found = [(bucket.manifest, 0)]
    for vbucket in bucket.vbuckets:
        found.append((vbucket.documents.collections.manifest, vbucket.data.high_seqno))
    return found


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_change_that_cannot_be_saved_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A change of many steps, to vbuckets that do not all stand at the same manifest."""
    settings = ClusterSettings(vbuckets=VBUCKETS, data_folder=tmp_path, seed=1)
    bucket = ProducerBucket(settings)
    with bucket.lock:
        set_state(bucket, 1, VbucketState.DEAD)
        bucket.change_manifest(CreateScope("old"))
    before, writes = _known(bucket), 0
    replace = OsFile.replace

    def fail_once(file: OsFile, parts: Iterable[Data]) -> None:
        nonlocal writes
        writes += 1
        if writes == failing:
            raise OSError(28, "No space left on device")
        replace(file, parts)

    monkeypatch.setattr(OsFile, "replace", fail_once)
    has_failed = False
    with bucket.lock:
        try:
            bucket.change_manifest(*CHANGES, DropScope("old"))
        except OSError:
            has_failed = True
    monkeypatch.undo()
    after = _known(bucket)
    if has_failed:
        assert after == before
    else:
        assert {manifest.uid for manifest, _ in (after[0], after[1], after[3])} == {2}
    with bucket.lock:
        bucket.close()
    again = ProducerBucket(settings)
    assert _known(again) == after
    with again.lock:
        again.change_manifest(CreateScope("next"))
        again.close()
