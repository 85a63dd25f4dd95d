"""The positions of the numbers in an item's frame, used to encode and to decode versions.

A frame is a header, extras by its opcode, key and value. Each name below says which numbers its
layout holds, in their order; all are big-endian. Sources: kv_engine ``docs/BinaryProtocol.md``,
``include/memcached/protocol_binary.h`` (cb::mcbp::request, DcpMutationPayload and those around it).
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
"""Seqno, revision, metadata bytes: for clients that did not ask for delete times."""
DELETION_WITH_TIME: Final = Struct(">QQIB")
"""Seqno, revision, delete time, a byte that is 0 now (it was the length of a collection's name)."""
EXPIRATION: Final = Struct(">QQI")
"""Seqno, revision, delete time: what a deletion with its time begins with, too."""
PREPARE: Final = Struct(">QQIIIBBB")
"""Seqno, revision, flags, expiry, lock time, cache hint, whether it deletes, durability level."""
COMPLETION: Final = Struct(">QQ")
"""Seqno of the prepare, seqno of the commit or abort itself."""
SYSTEM_EVENT: Final = Struct(">QIB")
"""Seqno, event, version of the layout of the event's value."""
