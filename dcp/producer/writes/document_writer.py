"""KV commands that change the documents of one vbucket: CAS, expiry, deletion with a tombstone.

Keys have no collection prefix; the collection is a separate argument, 0 for the default one. Every
change adds a version to the history. An expiry of up to 30 days is relative, a larger one absolute,
and 0 means none. An expired document becomes an expiration when a command touches it or the pager
finds it (kv_engine ``docs/BinaryProtocol.md``, ``engines/ep/src/ep_vb.cc``).

A durability ``level`` makes a command start a sync write (``sync_writes.py``): the command returns
the prepare. Until the commit or abort nobody else can write the key, it does not expire, and reads
return the old document. Reads fail if a commit before a failover is in doubt.
"""

import string
from collections.abc import Generator, Iterable
from typing import Final, NamedTuple

from dcp.errors import FrameError
from dcp.producer.writes.expiry_queue import ExpiryQueue
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.values import system_xattrs_only, xattrs_only
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.vbucket.documents import DocumentStore, check_key, is_due
from dcp.types import U32_MAX
from dcp.wire.json_text import is_json, is_json_steps
from dcp.wire.snappy import inflate
from dcp.wire.vocabulary import ALL_DATATYPE_BITS, Datatype, Opcode, Status
from dcp.wire.xattr import MAX_SYSTEM_BYTES, split_xattrs

MAX_VALUE_BYTES: Final = 20 * 1024 * 1024
"""Limit of the plain value; system xattrs have their own (``MAX_SYSTEM_BYTES``)."""
RELATIVE_EXPIRY_SECONDS: Final = 30 * 24 * 3600
"""An expiry up to this counts from now, as in memcached's protocol."""
_NOT_FIRST: Final = frozenset(
    bytes((byte,)) for byte in (*range(32), 127, *string.punctuation.encode()) if byte != ord("_")
)
"""Characters with which no xattr name begins: C's ``iscntrl`` and ``ispunct``, except ``_``."""
_JSON: Final = int(Datatype.JSON)
_SNAPPY: Final = int(Datatype.SNAPPY)
_XATTR: Final = int(Datatype.XATTR)


class CheckedValue(NamedTuple):
    """A value with the datatype to store, or the fault that the check found."""

    value: bytes
    datatype: int
    fault: RefusedError | None = None


class DocumentWriter:
    """KV commands over one vbucket's documents; ``now`` is in seconds since 1970."""

    def __init__(self, documents: DocumentStore) -> None:
        self.documents = documents
        self.data = documents.data
        self.maybe_visible: set[tuple[int, bytes]] = set()
        """(collection, key) of prepares that may have been committed before a failover."""
        self.rewind()
        self.data.on_append.add(self._note_expiry)

    def hold_back(self, prepares: Iterable[tuple[int, bytes]]) -> None:
        self.maybe_visible = set(prepares)

    def rewind(self) -> None:
        """Rebuild the expiry queue after the history was cut."""
        self.expiries = ExpiryQueue()
        for version in self.data.newest.versions:
            if version.is_mutation:
                self._note_expiry(version)

    def _note_expiry(self, version: Version) -> None:
        if version.is_document:
            self.expiries.note(version.collection, version.key, version.expiry)

    def get(self, key: bytes, now: float, *, collection: int = 0) -> Version:
        """Return the document of ``key``, as ``DocumentStore.get`` does.

        It raises SYNC_WRITE_RE_COMMIT_IN_PROGRESS if a commit before a failover is in doubt.
        Like all commands, it raises UNKNOWN_COLLECTION if the collection does not exist. Writes
        also raise SYNC_WRITE_IN_PROGRESS while a sync write on the key is pending.
        """
        return self._readable(collection, key, self._existing(collection, key, now))

    def store(  # noqa: PLR0913  as many as KV SET has
        self,
        key: bytes,
        value: CheckedValue,
        now: float,
        *,
        opcode: int = Opcode.SET,
        flags: int = 0,
        expiry: int = 0,
        cas: int = 0,
        collection: int = 0,
        level: int = 0,
    ) -> Version:
        """Store a document as SET, ADD or REPLACE does."""
        existing = self._existing(collection, key, now)
        if existing is None and opcode == Opcode.REPLACE:
            raise RefusedError(Status.KEY_ENOENT, f"replace {key!r}: no such document")
        self._require_free(collection, key)
        if existing is not None and opcode == Opcode.ADD:
            raise RefusedError(Status.KEY_EEXISTS, f"add {key!r}: the document exists")
        _check_cas(key, existing, cas)
        check_key(key, collection)
        if value.fault is not None:
            raise value.fault
        if not 0 <= flags <= U32_MAX:
            raise RefusedError(Status.EINVAL, f"flags: found {flags}, expected 0 to {U32_MAX}")
        stored, datatype = self._with_older_xattrs(value, existing)
        until = self._expiry(collection, expiry, now)
        return self._change(collection, key, now, Content(stored, datatype, flags, until), level)

    def delete(
        self, key: bytes, now: float, *, cas: int = 0, collection: int = 0, level: int = 0
    ) -> Version:
        """Delete a document; its tombstone keeps the system xattrs."""
        existing = self._existing(collection, key, now)
        self._require_free(collection, key)
        if existing is None:
            raise RefusedError(Status.KEY_ENOENT, f"delete {key!r}: no such document")
        _check_cas(key, existing, cas)
        content = self._tombstone(existing, Opcode.DCP_DELETION, now)
        return self._change(collection, key, now, content, level)

    def touch(
        self, key: bytes, expiry: int, now: float, *, collection: int = 0, level: int = 0
    ) -> Version:
        """Change a document's expiry, which is a mutation; do nothing if the expiry is the same.

        Source: kv_engine ``engines/ep/src/vbucket.cc`` (processGetAndUpdateTtl).
        """
        found = self._existing(collection, key, now)
        self._require_free(collection, key)
        existing = self._readable(collection, key, found)
        until = self._expiry(collection, expiry, now)
        if until == existing.expiry and not level:
            return existing
        content = Content(existing.value, existing.datatype, existing.flags, until)
        return self._change(collection, key, now, content, level)

    def expire_due(self, now: float) -> int:
        """Expire every document whose time has come; return how many.

        One document's error does not stop the others: the first error is raised at the end.
        Documents that failed stay in the queue.
        """
        expired = 0
        later: list[tuple[int, bytes, int]] = []
        failures: list[Exception] = []
        try:
            while (due := self.expiries.pop_due(now)) is not None:
                later.append(due)
                collection, key, _ = due
                try:
                    newest = self.data.newest.of_key(key, collection)
                    if newest is not None and is_due(newest, now):
                        if not self._is_free(collection, key):
                            # A document with a pending sync write does not expire; it stays in
                            # ``later``.
                            continue
                        self._expire(newest, now)
                        expired += 1
                # One failure must not keep the other documents from expiring.
                except Exception as error:
                    failures.append(error)
                else:
                    later.pop()
        finally:
            for collection, key, expiry in later:
                self.expiries.note(collection, key, expiry)
        if failures:
            raise failures[0]
        return expired

    # --- helpers

    def _existing(self, collection: int, key: bytes, now: float) -> Version | None:
        """Return a document that has not expired; one that is due expires now."""
        existing = self.documents.existing(collection, key, now)
        if existing is None:
            found = self.data.newest.of_key(key, collection)
            if found is not None and is_due(found, now) and self._is_free(collection, key):
                self._expire(found, now)
        return existing

    def _is_free(self, collection: int, key: bytes) -> bool:
        """Return False while a sync write on the key is pending: its document cannot change."""
        return self.data.newest.pending_prepare(key, collection) is None

    def _require_free(self, collection: int, key: bytes) -> None:
        if not self._is_free(collection, key):
            raise RefusedError(
                Status.SYNC_WRITE_IN_PROGRESS, f"{key!r}: a sync write on it is under way"
            )

    def _readable(self, collection: int, key: bytes, existing: Version | None) -> Version:
        if (collection, key) in self.maybe_visible:
            raise RefusedError(
                Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
                f"get {key!r}: its sync write is not committed again yet",
            )
        return self.documents.with_value(key, existing)

    def _with_older_xattrs(
        self, value: CheckedValue, existing: Version | None
    ) -> tuple[bytes, int]:
        """Return value and datatype to store: a value without xattrs keeps the old document's.

        Source: kv_engine ``daemon/protocol/mcbp/mutation_context.cc``.
        """
        if existing is None or not existing.datatype & ~value.datatype & _XATTR:
            return value.value, value.datatype
        plain = inflate(value.value) if value.datatype & _SNAPPY else value.value
        return self._xattrs_of(existing) + plain, value.datatype & ~_SNAPPY | _XATTR

    def _xattrs_of(self, older: Version) -> bytes:
        stored = self.data.newest.with_value(older).value
        return xattrs_only(inflate(stored) if older.datatype & _SNAPPY else stored)

    def _expiry(self, collection: int, expiry: int, now: float) -> int:
        """Return an absolute expiry; the collection's maximum TTL limits it, and is its default."""
        until = _absolute_expiry(expiry, now) if expiry else 0
        found = self.documents.collections.find(collection)
        latest = int(now) + found.max_ttl_seconds if found and found.max_ttl_seconds else 0
        return min(until or latest, latest) if latest else until

    def _expire(self, due: Version, now: float) -> None:
        content = self._tombstone(due, Opcode.DCP_EXPIRATION, now)
        self._append(due.collection, due.key, now, content)

    def _change(
        self, collection: int, key: bytes, now: float, content: Content, level: int
    ) -> Version:
        try:
            self.data.require_room()
        except OSError as error:
            text = f"{key!r}: too much waits for the disk: {error}"
            raise RefusedError(Status.ETMPFAIL, text) from error
        if level:
            deletes = content.opcode != Opcode.DCP_MUTATION
            sync = SyncWrite(level=level, deletes=deletes)
            if deletes:  # a prepare has no other field for the time, and its commit needs it
                content = content._replace(expiry=content.delete_time)
            content = content._replace(opcode=int(Opcode.DCP_PREPARE), sync=sync)
        return self._append(collection, key, now, content)

    def _tombstone(self, existing: Version, opcode: Opcode, now: float) -> Content:
        value = b""
        if existing.datatype & _XATTR:
            stored = self.data.newest.with_value(existing).value
            value = system_xattrs_only(inflate(stored) if existing.datatype & _SNAPPY else stored)
        return Content(value, _XATTR if value else 0, opcode=int(opcode), delete_time=int(now))

    def _append(self, collection: int, key: bytes, now: float, content: Content) -> Version:
        older = self.data.newest.of_key(key, collection)
        version = Version(
            self.data.vbucket,
            key,
            content,
            seqno=self.data.high_seqno + 1,
            # The revisions of a key must never repeat, not even after a purge of its tombstone.
            rev=(self.data.newest.forgotten_rev if older is None else older.rev) + 1,
            cas=self.documents.clock.next(now),
            collection=collection,
        )
        self.documents.append(version)
        return version


def checked(value: bytes, datatype: int = 0) -> CheckedValue:
    """Check a value: XATTR and SNAPPY stay as given, JSON becomes what the body really is.

    The fault is that the value is too large, or does not match its XATTR or SNAPPY bit.
    """
    # The client's JSON bit is not trusted: kv_engine looks at the value, too.
    if not datatype & ~_JSON and len(value) <= MAX_VALUE_BYTES:
        return CheckedValue(value, _JSON if is_json(value) else 0)
    steps = checked_in_steps(value, datatype)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: CheckedValue = end.value
            return found


def checked_in_steps(value: bytes, datatype: int) -> Generator[None, None, CheckedValue]:
    """Check a value as ``checked`` does, so that long JSON does not block the event loop."""
    try:
        stored = yield from _datatype_steps(value, datatype)
    except RefusedError as error:
        return CheckedValue(value, datatype, error)
    return CheckedValue(value, stored)


def _datatype_steps(value: bytes, datatype: int) -> Generator[None, None, int]:
    """Return the datatype to store; raise RefusedError if the value does not match ``datatype``."""
    if datatype & ~ALL_DATATYPE_BITS:
        raise RefusedError(Status.EINVAL, f"datatype: found {datatype:#04x}, expected 0 to 7")
    try:
        plain = inflate(value) if datatype & _SNAPPY else value
        body = (yield from _storable_body_steps(plain)) if datatype & _XATTR else plain
    except FrameError as error:
        status = Status.XATTR_EINVAL if datatype & _XATTR else Status.EINVAL
        raise RefusedError(status, str(error)) from error
    most = MAX_VALUE_BYTES + (MAX_SYSTEM_BYTES if datatype & _XATTR else 0)
    if len(plain) > most:
        raise RefusedError(
            Status.E2BIG, f"value: found {len(plain)} bytes, expected at most {most}"
        )
    return datatype & ~_JSON | (_JSON if (yield from is_json_steps(body)) else 0)


def _storable_body_steps(value: bytes) -> Generator[None, None, bytes]:
    """Check a value with the XATTR bit that a client stores, and return its body, in steps.

    A name cannot begin with punctuation: ``_`` is the system's, ``$`` means computed xattrs.

    Raises:
        FrameError: the xattr section is missing or malformed, a name is invalid, or an xattr is not
            JSON (kv_engine ``xattr/utils.cc``, ``xattr/key_validator.cc``).
    """
    xattrs, body = split_xattrs(value)
    for name, text in xattrs:
        if name[:1] in _NOT_FIRST or name == b"_":
            raise FrameError(
                f"xattr name: found {name!r}, expected one that begins with a letter, a digit, "
                "or _ and more"
            )
        if not (yield from is_json_steps(text)):
            raise FrameError(f"xattr {name!r}: found {text[:40]!r}, expected JSON")
    return body


def _check_cas(key: bytes, existing: Version | None, cas: int) -> None:
    if cas == 0:
        return
    if existing is None:
        raise RefusedError(Status.KEY_ENOENT, f"{key!r} with cas {cas}: no such document")
    if existing.cas != cas:
        raise RefusedError(Status.KEY_EEXISTS, f"{key!r}: found cas {existing.cas}, expected {cas}")


def _absolute_expiry(expiry: int, now: float) -> int:
    if not 0 <= expiry <= U32_MAX:
        raise RefusedError(Status.EINVAL, f"expiry: found {expiry}, expected 0 to {U32_MAX}")
    if 0 < expiry <= RELATIVE_EXPIRY_SECONDS:
        return int(now) + expiry
    return expiry
