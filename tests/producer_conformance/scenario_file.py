"""Scenarios read from their files: that of ``NAME.jsonl`` is ``NAME.scenario.json``.

``docs/howto/conformance.md`` says how one is written.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import system_event as se
from dcp.wire.vocabulary import Opcode, VbucketState
from tests.producer_conformance.scenario import (
    Action,
    DropCursors,
    LearnManifest,
    Purge,
    Scenario,
    SetUp,
    Step,
    Write,
)

RECORDINGS: Final = Path(__file__).parents[1] / "data" / "captures"
_EVENTS: Final[dict[str, type[se.ManifestEvent]]] = {
    kind.__name__: kind
    for kind in (
        se.CollectionBegun,
        se.CollectionEnded,
        se.CollectionFlushed,
        se.ScopeCreated,
        se.ScopeDropped,
    )
}
_CONTENT: Final = ("datatype", "flags", "expiry", "delete_time")


def scenarios_of(recording: Path) -> tuple[Scenario, ...]:
    """Read a recording's scenario, one for each bucket; none where there is no scenario.

    It lies beside the recording, or in ``tests/data/captures`` for a copy of one from there.

    Raises:
        ValueError: the file is not a scenario.
    """
    name = f"{recording.stem}.scenario.json"
    path = next(
        (each for each in (recording.with_name(name), RECORDINGS / name) if each.is_file()), None
    )
    if path is None:
        return ()
    try:
        return scenarios_in(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: found {error!r}, expected a scenario") from error


def scenarios_in(content: Iterable[Mapping[str, Any]]) -> tuple[Scenario, ...]:
    """Read the content of a scenario's file."""
    return tuple(_scenario(raw) for raw in content)


def _scenario(raw: Mapping[str, Any]) -> Scenario:
    fields = dict(raw)
    for name in Scenario.__slots__:
        if isinstance(fields.get(name), list) and name != "steps":
            fields[name] = frozenset(fields[name])
    fields["steps"] = tuple(_step(step) for step in raw["steps"])
    if "release" in raw:
        major, minor = raw["release"]
        fields["release"] = (int(major), int(minor))
    return Scenario(**fields)


def _step(raw: Mapping[str, Any]) -> Step:
    fields = dict(raw)
    before, vbucket = fields.pop("before"), fields.pop("vbucket", 0)
    make = _ACTIONS[fields.pop("do")]
    if "items" in fields:
        fields["versions"] = tuple(_version(vbucket, item) for item in fields.pop("items"))
    return Step(before, vbucket, make(**fields))


def _set_up(
    *,
    failover_log: list[list[int]],
    high_seqno: int,
    versions: tuple[Version, ...] = (),
    state: str = "active",
    keep_up_to: int = 0,
    purge_seqno: int = 0,
    unpersisted_seqnos: int = 0,
    default_collection_seqno: int | None = None,
) -> SetUp:
    facts = VbucketFacts(
        FailoverLog(tuple(FailoverEntry(uuid, seqno) for uuid, seqno in failover_log)),
        high_seqno,
        purge_seqno=purge_seqno,
        persisted_seqno=high_seqno - unpersisted_seqnos,
        collections_high_seqno=default_collection_seqno,
        state=VbucketState.DEAD if state == "elsewhere" else VbucketState[state.upper()],
    )
    return SetUp(facts, versions, keep_up_to, state != "elsewhere")


def _write(*, versions: tuple[Version, ...], checkpoint_begins: bool = False) -> Write:
    return Write(versions, checkpoint_begins)


def _learn_manifest(*, uid: int = 0, manifest: Mapping[str, Any] | None = None) -> LearnManifest:
    return LearnManifest(uid if manifest is None else int(manifest["uid"], 16), manifest)


_ACTIONS: Final[dict[str, Callable[..., Action]]] = {
    "set_up": _set_up,
    "write": _write,
    "purge": Purge,
    "drop_cursors": DropCursors,
    "learn_manifest": _learn_manifest,
}


def _version(vbucket: int, raw: Mapping[str, Any]) -> Version:
    fields = dict(raw)
    seqno = fields.pop("seqno")
    if "event" in fields:
        kind = _EVENTS[fields.pop("event")]
        if "name" in fields:
            fields["name"] = fields["name"].encode()
        return Version.of_event(vbucket, kind(**fields), seqno=seqno)
    opcode = Opcode[f"DCP_{fields.pop('is', 'mutation').upper()}"]
    sync = {name: fields.pop(name) for name in SyncWrite._fields if name in fields}
    content = Content(
        _bytes(fields.pop("value", "")),
        opcode=opcode,
        sync=SyncWrite(**sync) if sync else None,
        **{name: fields.pop(name) for name in _CONTENT if name in fields},
    )
    key, collection = _bytes(fields.pop("key")), fields.pop("collection_id", 0)
    rev, cas = fields.pop("rev", 1), fields.pop("cas", 1)
    if fields:
        raise ValueError(f"found {sorted(fields)} in the item with seqno {seqno}, expected none")
    return Version(vbucket, key, content, seqno=seqno, rev=rev, cas=cas, collection=collection)


def _bytes(text: str | Mapping[str, Any]) -> bytes:
    """Return a key or value: text, ``hex:…``, or ``{"repeat": text, "times": n}``."""
    if not isinstance(text, str):
        return str(text["repeat"]).encode() * int(text["times"])
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()
