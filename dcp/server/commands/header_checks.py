"""Checks a request's datatype, CAS and vbucket, before its handler runs.

The codec checks lengths; handlers check bodies. Source: kv_engine ``daemon/mcbp_validators.cc``,
verify_header and its callers.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode

_ADJUST_TIME: Final = 0xFD


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """The header fields that one command's requests may set."""

    takes_cas: bool = False
    takes_json: bool = False
    takes_datatypes: bool = False
    """Any datatype; the handler checks the negotiated ones."""
    takes_vbucket: bool = True


_STRICT: Final = HeaderRule()
_LENIENT: Final = HeaderRule(takes_cas=True)
_WITHOUT_VBUCKET: Final = HeaderRule(takes_vbucket=False)
_WRITE: Final = HeaderRule(takes_cas=True, takes_datatypes=True)

# kv_engine never checks the CAS of some commands (_LENIENT), and demands vbucket 0 of others.
HEADER_RULES: Final[dict[int, HeaderRule]] = {
    Opcode.HELLO: _STRICT,
    Opcode.SASL_LIST_MECHS: _STRICT,
    Opcode.SASL_AUTH: _STRICT,
    Opcode.SASL_STEP: _STRICT,
    Opcode.GET_ERROR_MAP: _WITHOUT_VBUCKET,
    Opcode.SELECT_BUCKET: _LENIENT,
    Opcode.LIST_BUCKETS: _LENIENT,
    Opcode.VERSION: _STRICT,
    Opcode.NOOP: _STRICT,
    Opcode.QUIT: _STRICT,
    Opcode.STAT: HeaderRule(takes_json=True),
    Opcode.GET_CLUSTER_CONFIG: _STRICT,
    Opcode.IOCTL_GET: _STRICT,
    Opcode.IOCTL_SET: _STRICT,
    _ADJUST_TIME: _STRICT,
    Opcode.GET_COLLECTIONS_MANIFEST: _WITHOUT_VBUCKET,
    Opcode.GET_COLLECTION_ID: _WITHOUT_VBUCKET,
    Opcode.GET_SCOPE_ID: _WITHOUT_VBUCKET,
    Opcode.GET: _STRICT,
    Opcode.SET: _WRITE,
    Opcode.ADD: HeaderRule(takes_datatypes=True),
    Opcode.REPLACE: _WRITE,
    Opcode.DELETE: _LENIENT,
    Opcode.TOUCH: _STRICT,
    Opcode.GET_ALL_VB_SEQNOS: _STRICT,
    Opcode.OBSERVE_SEQNO: _LENIENT,
    Opcode.SEQNO_PERSISTENCE: _STRICT,
    Opcode.GET_FAILOVER_LOG: _LENIENT,
    Opcode.DCP_OPEN: HeaderRule(takes_cas=True, takes_json=True),
    Opcode.DCP_CONTROL: _LENIENT,
    Opcode.DCP_STREAM_REQ: _LENIENT,
    Opcode.DCP_CLOSE_STREAM: _LENIENT,
    Opcode.DCP_BUFFER_ACK: _LENIENT,
    Opcode.DCP_SEQNO_ACKNOWLEDGED: _STRICT,
    Opcode.DCP_GET_FAILOVER_LOG: _LENIENT,
}


def header_fault(frame: Frame, features: Collection[int], *, is_dcp: bool) -> str:
    """Describe the fault of a request's header; empty if there is none."""
    rule = HEADER_RULES.get(frame.opcode)
    if rule is None:
        return ""
    if frame.cas and not rule.takes_cas:
        return "Request CAS must not be set"
    allowed = Datatype.JSON if rule.takes_json else 0
    if not rule.takes_datatypes and frame.datatype & ~allowed:
        return "Request datatype invalid"
    # DCP connections have JSON without negotiating it.
    has_json = is_dcp or HelloFeature.JSON in features
    if frame.datatype and not rule.takes_datatypes and not has_json:
        return "Datatype (JSON) not enabled for the connection"
    if frame.vbucket and not rule.takes_vbucket:
        return "Request vbucket id must be 0"
    return ""
