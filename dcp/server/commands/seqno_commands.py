"""Commands about seqnos and failover logs, for any connection with a bucket."""

from itertools import pairwise
from typing import Final, cast

from dcp.server.commands.refusals import refuse_unknown_id
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Opcode, Status, VbucketState


def failover_log(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    vbucket = session.bucket.table.at(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
    else:
        session.reply(frame, m.FailoverLogAnswer(vbucket.failover_log.entries))


def all_seqnos(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer the high seqnos of this node's vbuckets, of all collections or one.

    A client with Collections gets the newest seqno that it can see. With
    `ServerSettings.tells_high_seqnos` it gets the high seqno.
    """
    request = cast("m.GetAllVbSeqnos", body)
    state = request.state or 0
    has_collections = HelloFeature.COLLECTIONS in session.login.features
    # A client without Collections gets the default collection's seqnos, with unfinished sync
    # writes. The collection that it names has no effect (as observed on a 7.0 server).
    collection = request.collection if has_collections else DEFAULT_ID
    if state > VbucketState.DEAD:
        session.refuse(frame, Status.EINVAL, "Request vbucket state invalid")
    elif has_collections and collection not in (None, *session.bucket.manifest.collections):
        refuse_unknown_id(session, frame, Status.UNKNOWN_COLLECTION)
    else:
        wanted = {VbucketState(state)} if state else set(VbucketState) - {VbucketState.DEAD}
        vbuckets = session.bucket.table.of_node(session.node)
        is_high = session.bucket.settings.tells_high_seqnos
        seqnos = (
            (v.id, _seqno_of(v, collection, is_high=is_high))
            for v in vbuckets
            if v.shown_state in wanted
        )
        known = tuple((vbucket, seqno) for vbucket, seqno in seqnos if seqno is not None)
        session.reply(frame, m.AllVbSeqnos(known))


def _seqno_of(vbucket: Vbucket, collection: int | None, *, is_high: bool) -> int | None:
    """Return the newest seqno of a collection; None if the vbucket does not know the collection."""
    known = vbucket.documents.collections
    # Inside a snapshot, a replica is complete only at the end of the last one.
    if collection is None and not vbucket.data.checkpoints.is_snapshot_complete:
        return max(vbucket.data.checkpoints.complete_seqno, vbucket.promised_seqno)
    if collection is None:
        newest = vbucket.data.high_seqno if is_high else known.max_visible_seqno
        return max(newest, vbucket.promised_seqno)
    if known.find(collection) is None:
        return None
    if collection == DEFAULT_ID:
        return vbucket.default_high_seqno
    return known.high_seqnos.get(collection, 0)


def observe_seqno(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer the persisted and the high seqno; for an old branch, its last seqno as well."""
    asked = cast("m.ObserveSeqno", body).vb_uuid
    vbucket = session.bucket.table.at(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
        return
    high, on_disk = vbucket.data.high_seqno, vbucket.public_persisted_seqno
    current = vbucket.failover_log.current_uuid
    if asked == current:
        session.reply(frame, m.ObserveSeqnoAnswer(0, vbucket.id, current, on_disk, high))
        return
    entries = vbucket.failover_log.entries
    # A branch ended at the seqno where the next one began.
    for newer, older in pairwise(entries):
        if older.vb_uuid == asked:
            answer = m.ObserveSeqnoAnswer(1, vbucket.id, current, on_disk, high, asked, newer.seqno)
            session.reply(frame, answer)
            return
    session.refuse(frame, Status.KEY_ENOENT)


def seqno_persistence(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer once ``seqno`` is on disk, or ETMPFAIL if that takes too long."""
    vbucket = session.bucket.table.at(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
        return
    go_on = session.wait()

    def answer(status: Status) -> None:
        if status is Status.SUCCESS:
            go_on(lambda: session.reply(frame, m.Empty()))
        else:
            go_on(lambda: session.refuse(frame, status))

    seqno = cast("m.SeqnoPersistence", body).seqno
    # Writes of this turn would otherwise reach a disk in memory only at its end.
    session.bucket.writes.flush()
    session.bucket.persistence_waits.add(session, vbucket, session.node, seqno, answer)


SEQNO_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.GET_FAILOVER_LOG: CommandHandler(Access.BUCKET, failover_log),
    Opcode.GET_ALL_VB_SEQNOS: CommandHandler(Access.BUCKET, all_seqnos),
    Opcode.OBSERVE_SEQNO: CommandHandler(Access.BUCKET, observe_seqno),
    Opcode.SEQNO_PERSISTENCE: CommandHandler(Access.BUCKET, seqno_persistence),
}
