"""Statistics groups about the bucket: general facts, memory, collections and scopes.

Names are kv_engine's (``statistics/stat_definitions.json``; in ``engines/ep/src``:
``collections/manager.cc``, doCollectionStats and doScopeStats; ``ep_engine.cc``, doMemoryStats).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from dcp.server.checkpoints.checkpoint_memory import LOWER_MARK_PERCENT, UPPER_MARK_PERCENT
from dcp.server.commands.stat_request import Statistic, StatisticsRequest
from dcp.server.model.manifest import Collection, Manifest, Scope
from dcp.server.model.refused_error import RefusedError
from dcp.wire.vocabulary import Status, VbucketState

_STATES: Final = (
    VbucketState.ACTIVE,
    VbucketState.REPLICA,
    VbucketState.PENDING,
    VbucketState.DEAD,
)


def general(question: StatisticsRequest) -> Iterator[Statistic]:
    """Group without a name: facts of a node, and its number of vbuckets in each state."""
    bucket, node = question.bucket, question.node
    owned = [bucket.vbuckets[vbucket] for vbucket in bucket.map.vbuckets_of(node)]
    in_state = Counter(vbucket.shown_state for vbucket in question.vbuckets())
    yield "bucket", bucket.name
    yield "time", int(bucket.settings.clock())
    for state in _STATES:
        yield f"vb_{state.name.lower()}_num", in_state[state]
    yield "curr_items", sum(sum(v.data.newest.document_counts().values()) for v in owned)
    yield "curr_versions", sum(v.data.high_seqno - v.data.base_seqno for v in owned)


def memory(question: StatisticsRequest) -> Iterator[Statistic]:
    bucket = question.bucket
    quota = bucket.settings.checkpoint_quota_bytes
    vbuckets = question.vbuckets()
    yield "ep_checkpoint_memory", sum(v.data.checkpoints.memory_bytes for v in vbuckets)
    yield "ep_checkpoint_memory_quota", quota
    yield "ep_checkpoint_memory_recovery_upper_mark_bytes", quota * UPPER_MARK_PERCENT // 100
    yield "ep_checkpoint_memory_recovery_lower_mark_bytes", quota * LOWER_MARK_PERCENT // 100
    yield "ep_cursors_dropped", bucket.counters.cursors_dropped
    yield "ep_diskqueue_memory", sum(v.data.persistence.unwritten_bytes for v in vbuckets)


def uuid(question: StatisticsRequest) -> Iterator[Statistic]:
    yield "uuid", question.bucket.map.bucket_uuid


def collections(question: StatisticsRequest) -> Iterator[Statistic]:
    return _collections(question, _collections_at(question))


def collections_by_id(question: StatisticsRequest) -> Iterator[Statistic]:
    known = question.bucket.manifest.collections
    found = known.get(_id_of(question.argument))
    if found is None:
        raise RefusedError(Status.UNKNOWN_COLLECTION, f"collection: found {question.argument!r}")
    return _collections(question, [found])


def _collections_at(question: StatisticsRequest) -> list[Collection]:
    manifest = question.bucket.manifest
    if not question.argument:
        return list(manifest.collections.values())
    return [manifest.at(question.argument)]


def _id_of(text: str) -> int:
    try:
        return int(text[:10], 16)
    except ValueError:
        raise RefusedError(
            Status.EINVAL, f"id: found {text!r}, expected a hexadecimal number"
        ) from None


def _collections(question: StatisticsRequest, wanted: list[Collection]) -> Iterator[Statistic]:
    manifest = question.bucket.manifest
    counts = _documents(question)
    if not question.argument:
        yield "manifest_uid", manifest.uid
    for each in wanted:
        prefix = f"{each.scope_id:#x}:{each.id:#x}"
        yield f"{prefix}:items", counts[each.id]
        yield f"{prefix}:name", each.name
        yield f"{prefix}:scope_name", manifest.scopes[each.scope_id].name
        if each.max_ttl_seconds is not None:
            yield f"{prefix}:maxTTL", each.max_ttl_seconds
        if each.flush_uid:
            yield f"{prefix}:flush_uid", each.flush_uid


def collection_details(question: StatisticsRequest) -> Iterator[Statistic]:
    wanted = question.vbuckets_asked_for()
    for_all = [] if question.argument else [("manifest_uid", question.bucket.manifest.uid)]

    # A generator of its own: the checks above must raise before the first statistic.
    def statistics() -> Iterator[Statistic]:
        yield from for_all
        for vbucket in wanted:
            known, counts = vbucket.documents.collections, vbucket.data.newest.document_counts()
            yield f"vb_{vbucket.id}:manifest:uid", known.manifest.uid
            yield f"vb_{vbucket.id}:manifest:collections", len(known.manifest.collections)
            for each in known.manifest.collections.values():
                prefix = f"vb_{vbucket.id}:{each.id:#x}"
                yield f"{prefix}:name", each.name
                yield f"{prefix}:scope", f"{each.scope_id:#x}"
                yield f"{prefix}:items", counts[each.id]
                yield f"{prefix}:high_seqno", known.high_seqnos.get(each.id, 0)

    return statistics()


def scopes(question: StatisticsRequest) -> Iterator[Statistic]:
    manifest = question.bucket.manifest
    if not question.argument:
        return _scopes(question, manifest, manifest.scopes.values())
    return _scopes(question, manifest, [manifest.scope(question.argument)])


def scopes_by_id(question: StatisticsRequest) -> Iterator[Statistic]:
    manifest = question.bucket.manifest
    found = manifest.scopes.get(_id_of(question.argument))
    if found is None:
        raise RefusedError(Status.UNKNOWN_SCOPE, f"scope: found {question.argument!r}")
    return _scopes(question, manifest, [found])


def _scopes(
    question: StatisticsRequest, manifest: Manifest, wanted: Iterable[Scope]
) -> Iterator[Statistic]:
    counts = _documents(question)
    if not question.argument:
        yield "manifest_uid", manifest.uid
    for scope in wanted:
        members = list(manifest.collections_of(scope.id))
        yield f"{scope.id:#x}:items", sum(counts[each.id] for each in members)
        yield f"{scope.id:#x}:name", scope.name
        yield f"{scope.id:#x}:collections", len(members)
        for each in members:
            yield f"{scope.id:#x}:{each.id:#x}:name", each.name


def _documents(question: StatisticsRequest) -> Counter[int]:
    """Count the documents of each collection in the vbuckets that the node owns."""
    counts: Counter[int] = Counter()
    for vbucket in question.bucket.map.vbuckets_of(question.node):
        counts += question.bucket.vbuckets[vbucket].data.newest.document_counts()
    return counts
