"""Whether our frame is the recorded one, field by field.

All fields are compared, uuids, CAS values and seqnos among them: the state holds the recorded ones.
These need not be the same:

    opaque              of what the server begins by itself (NOOP, map push): its own counter
    cache hint          in the extras of mutations and prepares: what the server's cache thinks
    cluster map         another cluster's; ours must be a map of as many vbuckets, but where the
                        recorded server left it out for a client that has it
    SASL payloads       salt, nonce and iterations are the server's; the parts must be there
    error texts         people's; where one has a text the other must have one
    manifest            the order of scopes and collections is a hash table's
    version, error map  another build's; ours must be of that kind
    server durations    how long it took, in an answer's framing extras; a magic of its own
                        goes with them, which ours does not use
    granted features    ours lacks what ``NOT_OFFERED`` lists, and must grant all others; in
                        which order is each server's own
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, ServerOpcode, Status

FIELDS: Final = ("magic", "opcode", "vbucket_or_status", "opaque", "datatype", "cas")
NOT_OFFERED: Final = frozenset(
    {
        HelloFeature.UNORDERED_EXECUTION,
        HelloFeature.TRACING,
        HelloFeature.PRESERVE_TTL,
        HelloFeature.VATTR,
        HelloFeature.PITR,
        HelloFeature.SUBDOC_CREATE_AS_DELETED,
        HelloFeature.SUBDOC_DOCUMENT_MACRO_SUPPORT,
        HelloFeature.SUBDOC_REPLACE_BODY_WITH_XATTR,
        HelloFeature.REPORT_UNIT_USAGE,
        HelloFeature.NON_BLOCKING_THROTTLING_MODE,
        HelloFeature.SUBDOC_REPLICA_READ,
    }
)
"""Features that a server of documents has and a producer of streams need not have."""


_CACHE_HINT_AT: Final[dict[int, int]] = {Opcode.DCP_MUTATION: 30, Opcode.DCP_PREPARE: 28}


def differences(ours: Frame, recorded: Frame) -> Iterator[str]:
    """Yield each difference as ``field: found …, expected …``."""
    for name in FIELDS:
        if name == "opaque" and is_of_the_server(recorded):
            continue
        if name == "datatype" and _is_map_left_out(recorded):
            continue
        found, expected = _field(ours, name), _field(recorded, name)
        if found != expected:
            yield f"{name}: found {_number(name, found)}, expected {_number(name, expected)}"
    value_rule = _value_rule(recorded)
    for name in ("framing_extras", "extras", "key", "value"):
        found, expected = getattr(ours, name), getattr(recorded, name)
        if name == "framing_extras" and recorded.magic is Magic.ALT_RESPONSE:
            continue
        if name == "extras" and recorded.magic is Magic.SERVER_REQUEST:
            continue  # the map's own revision
        if name == "value" and value_rule is not None:
            fault = value_rule(found, expected)
            if fault:
                yield f"value: {fault}"
        elif _counting(recorded, name, found) != _counting(recorded, name, expected):
            yield f"{name}: found {_shown(found)}, expected {_shown(expected)}"


def _field(frame: Frame, name: str) -> int:
    if name == "magic" and frame.magic is Magic.ALT_RESPONSE:
        return Magic.RESPONSE
    return int(getattr(frame, name))


def _is_map_left_out(recorded: Frame) -> bool:
    """Whether the client was told of its map before, or the server that is warming up has none."""
    if not recorded.magic.is_response or recorded.value:
        return False
    is_config = recorded.opcode == Opcode.GET_CLUSTER_CONFIG and recorded.status == Status.SUCCESS
    return is_config or recorded.status == Status.NOT_MY_VBUCKET


def is_of_the_server(frame: Frame) -> bool:
    """Whether the server began the exchange by itself, outside all streams."""
    is_noop = frame.opcode == Opcode.DCP_NOOP and frame.magic is Magic.REQUEST
    return is_noop or frame.magic is Magic.SERVER_REQUEST


def _counting(recorded: Frame, name: str, part: bytes) -> bytes:
    """Return of a frame's part what must be the same."""
    if name != "extras" or recorded.magic.is_response:
        return part
    at = _CACHE_HINT_AT.get(recorded.opcode, len(part))
    return part[:at] + part[at + 1 :]


Rule = Callable[[bytes, bytes], str]


def _value_rule(recorded: Frame) -> Rule | None:
    """Return what compares values of this kind; None where they must be the same bytes."""
    if recorded.magic is Magic.SERVER_REQUEST:
        is_map = recorded.opcode == ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION
        return _same_kind_of_map if is_map else None
    if not recorded.magic.is_response:
        return None
    if _is_map_left_out(recorded):
        return _anything
    if recorded.status == Status.NOT_MY_VBUCKET:
        return _same_kind_of_map
    if recorded.status == Status.AUTH_CONTINUE:
        return _same_parts
    if recorded.status == Status.SUCCESS:
        return _SUCCESS_RULES.get(recorded.opcode)
    return _same_kind_of_error if recorded.status != Status.ROLLBACK else None


def _anything(_: bytes, __: bytes) -> str:
    return ""


def _same_kind_of_map(found: bytes, expected: bytes) -> str:
    ours, theirs = _vbuckets(found), _vbuckets(expected)
    return "" if ours == theirs else f"found a map of {ours} vbuckets, expected one of {theirs}"


def _vbuckets(value: bytes) -> int | None:
    try:
        return len(json.loads(value)["vBucketServerMap"]["vBucketMap"])
    except (ValueError, KeyError, TypeError):
        return None


def _same_kind_of_error(found: bytes, expected: bytes) -> str:
    ours, theirs = _error(found), _error(expected)
    return "" if ours == theirs else f"found {_shown(found)}, expected {_shown(expected)}"


def _error(value: bytes) -> Any:
    """Return an error's JSON without its texts; the bytes where it is none."""
    try:
        tree = json.loads(value)
        has_text = bool({"context", "ref"} & set(tree.pop("error")))
    except (ValueError, KeyError, AttributeError, TypeError):
        return value
    return has_text, tree


def _same_parts(found: bytes, expected: bytes) -> str:
    """Compare the names of SCRAM's attributes."""
    ours, theirs = _attributes(found), _attributes(expected)
    return "" if ours == theirs else f"found attributes {ours}, expected {theirs}"


def _attributes(value: bytes) -> list[bytes]:
    return [part.partition(b"=")[0] for part in value.split(b",")]


def _same_features(found: bytes, expected: bytes) -> str:
    ours = sorted(_features(found))
    theirs = sorted(feature for feature in _features(expected) if feature not in NOT_OFFERED)
    return "" if ours == theirs else f"found features {ours}, expected {theirs}"


def _features(value: bytes) -> list[int]:
    return [int.from_bytes(value[at : at + 2], "big") for at in range(0, len(value), 2)]


def _both_json(found: bytes, expected: bytes) -> str:
    ours, theirs = _json_kind(found), _json_kind(expected)
    return "" if ours == theirs else f"found {_shown(found)}, expected {_shown(expected)}"


def _json_kind(value: bytes) -> object:
    try:
        tree = json.loads(value)
    except ValueError:
        return None
    return sorted(tree) if isinstance(tree, dict) else type(tree).__name__


def _same_manifest(found: bytes, expected: bytes) -> str:
    ours, theirs = _manifest(found), _manifest(expected)
    return "" if ours == theirs else f"found {_shown(found)}, expected {_shown(expected)}"


def _manifest(value: bytes) -> object:
    """Return a manifest with its lists in the order of ids; the bytes where it is none."""
    try:
        tree = json.loads(value)
        for scope in tree["scopes"]:
            scope["collections"].sort(key=_uid)
        tree["scopes"].sort(key=_uid)
    except (ValueError, KeyError, TypeError, AttributeError):
        return value
    return tree


def _uid(named: Any) -> str:
    return str(named["uid"])


def _both_or_none(found: bytes, expected: bytes) -> str:
    same = bool(found) == bool(expected)
    return "" if same else f"found {_shown(found)}, expected {_shown(expected)}"


_SUCCESS_RULES: Final[dict[int, Rule]] = {
    Opcode.HELLO: _same_features,
    Opcode.SASL_AUTH: _same_parts,
    Opcode.SASL_STEP: _same_parts,
    Opcode.GET_CLUSTER_CONFIG: _same_kind_of_map,
    Opcode.GET_COLLECTIONS_MANIFEST: _same_manifest,
    Opcode.GET_ERROR_MAP: _both_json,
    Opcode.VERSION: _both_or_none,
}


def _number(name: str, value: int) -> str:
    return str(value) if name == "cas" else f"{value:#04x}"


def _shown(value: bytes) -> str:
    most = 64
    text = value.hex() if any(not 0x20 <= octet < 0x7F for octet in value) else repr(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(value)} bytes)"
