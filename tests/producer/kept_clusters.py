"""Clusters in a data folder, as tests of it look at them: what they tell, what a crash leaves."""

import shutil
from pathlib import Path

from dcp.producer.cluster import ProducerCluster
from dcp.server.storage.stored_items import STORED_FLAVOUR
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.raw_client import RawClient

NEVER = 3600.0
"""With ``flush_seconds`` of that nothing goes to disk but what a test writes there."""


def all_told(cluster: ProducerCluster) -> list[object]:
    """All that a bucket says of itself, every newest version included that was not purged."""
    bucket = cluster.bucket
    told: list[object] = [bucket.map.bucket_uuid, bucket.map.owners, bucket.manifest]
    for vbucket in bucket.vbuckets:
        data, collections = vbucket.data, vbucket.documents.collections
        told.append((vbucket.state, vbucket.failover_log, data.base_seqno))
        told.append((data.high_seqno, data.disk.persisted_seqno, data.disk.purge_seqno))
        told.append((dict(collections.high_seqnos), collections.max_visible_seqno))
        told.append((collections.manifest, list(collections.steps)))
        purged = range(data.disk.purge_seqno + 1)
        newest = [v for v in data.newest.versions if not v.is_deleted or v.seqno not in purged]
        told.append(sorted((v.seqno, *v.wire(STORED_FLAVOUR)) for v in newest))
    return told


def flush_all(cluster: ProducerCluster) -> None:
    with cluster.bucket.lock:
        for vbucket in cluster.bucket.vbuckets:
            vbucket.data.persistence.flush()


def write(cluster: ProducerCluster, *keys: bytes, value: bytes = b'"v"') -> None:
    """Write documents as one batch."""
    with cluster.batch():
        for key in keys:
            cluster.set(key, value)


def crash_of(cluster: ProducerCluster, folder: Path, to: str) -> Path:
    """Return a folder with what a crash of the cluster would leave."""
    with cluster.bucket.lock:
        return Path(shutil.copytree(folder, folder.with_name(to)))


def is_persisted(client: RawClient, seqno: int) -> bool:
    return client.call(m.SeqnoPersistence(seqno), Opcode.SEQNO_PERSISTENCE).status == Status.SUCCESS
