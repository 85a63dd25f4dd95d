"""Validates the flags of a stream request.

    NO_VALUE                   refused: it is a flag of DCP_OPEN
    CACHE_TRANSFER             only with TAKEOVER and ACTIVE_VB_ONLY; the stream is an ordinary one,
                               as from a server with cache transfers turned off
    all other known flags      in any combination
    unknown flags              without effect, as on a 7.0 server (newer ones refuse them)

Source: kv_engine ``daemon/mcbp_validators.cc`` (verify_common_dcp_stream_restrictions),
``engines/ep/src/dcp/producer.cc`` (makeStream).
"""

from typing import Final

from dcp.wire.vocabulary import StreamFlag

_BESIDE_CACHE_TRANSFER: Final = int(
    StreamFlag.CACHE_TRANSFER | StreamFlag.TAKEOVER | StreamFlag.ACTIVE_VB_ONLY
)


def fault_of(flags: int) -> str | None:
    """Describe the fault of a stream request's flags; None if they are valid."""
    if flags & StreamFlag.NO_VALUE:
        return "DCP_ADD_STREAM_FLAG_NO_VALUE{8} flag is no longer used"
    if flags & StreamFlag.CACHE_TRANSFER and flags & ~_BESIDE_CACHE_TRANSFER:
        return "CacheTransfer flag can only be combined with TakeOver or ActiveVbOnly flags"
    return None
