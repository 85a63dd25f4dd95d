"""Layouts of an item's frame: header, extras by opcode, key and value; numbers are big-endian.

The doc of each layout lists its numbers in order. Sources: kv_engine ``docs/BinaryProtocol.md``,
``include/memcached/protocol_binary.h`` (cb::mcbp::request, DcpMutationPayload and neighbours).
"""

from struct import Struct
from typing import Final

OPCODE_AT: Final = 1
KEY_LENGTH_AT: Final = 2
EXTRAS_LENGTH_AT: Final = 4
DATATYPE_AT: Final = 5
VBUCKET_AT: Final = 6
BODY_LENGTH_AT: Final = 8
OPAQUE_AT: Final = 12

HEADER: Final = Struct(">BBHBBHIIQ")
"""Magic, opcode, key bytes, extras bytes, datatype, vbucket, body bytes, opaque, CAS."""
MUTATION: Final = Struct(">QQIIIHB")
"""Seqno, revision, flags, expiry, lock time, metadata bytes, cache hint."""
DELETION: Final = Struct(">QQH")
"""Seqno, revision, metadata bytes: for clients without delete times."""
DELETION_WITH_TIME: Final = Struct(">QQIB")
"""Seqno, revision, delete time, and a byte that is 0 (once the length of a collection's name)."""
EXPIRATION: Final = Struct(">QQI")
"""Seqno, revision, delete time; a deletion with its time begins alike."""
PREPARE: Final = Struct(">QQIIIBBB")
"""Seqno, revision, flags, expiry, lock time, cache hint, 1 for a deletion, durability level."""
COMPLETION: Final = Struct(">QQ")
"""Seqno of the prepare, seqno of the commit or abort itself."""
SYSTEM_EVENT: Final = Struct(">QIB")
"""Seqno, event, version of the layout of the event's value."""
