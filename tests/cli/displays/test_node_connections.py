"""The view of a producer or a relay, from scripted answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dcp.cli.displays.node_connections import NodeFigures, looks_at_node, node_shown
from dcp.client.addresses import NodeAddress
from dcp.client.seed_lookup import HttpAnswer
from dcp.errors import NodeUnavailableError, SourceError
from dcp.protocol.credentials import Credentials, Secret

PRODUCER: dict[str, Any] = {"connections": [], "producer": {}}


class Scripted:
    """Stands in for a node: the body of its next answer, or an error."""

    def __init__(self, told: object) -> None:
        self.answer: bytes | NodeUnavailableError = json.dumps(told).encode()

    def ask(self, node: NodeAddress, path: str, *_: object) -> HttpAnswer:
        assert path == "/figures.json"
        if isinstance(self.answer, bytes):
            return HttpAnswer(f"http://{node}{path}", 200, self.answer)
        raise self.answer


def looks(script: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeFigures]:
    monkeypatch.setattr("dcp.cli.displays.node_connections.ask_over_http", script.ask)
    credentials = Credentials("user", Secret("password"))
    return looks_at_node("127.0.0.1:1", credentials, None, allows_plain=False, is_relay=False)


def paused(*names: str) -> bytes:
    connections = [{"name": name, "paused": "BufferLogFull"} for name in names]
    return json.dumps(PRODUCER | {"connections": connections}).encode()


def test_a_node_that_is_lost_between_two_questions_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Scripted(PRODUCER)
    seen = looks(script, monkeypatch)
    first = next(seen)
    assert first.relay is None and first.producer is not None
    script.answer = NodeUnavailableError("closed the connection")
    with pytest.raises(NodeUnavailableError, match="closed the connection"):
        next(seen)


def test_a_pause_is_as_long_as_it_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(PRODUCER)
    seen = looks(script, monkeypatch)
    for number in range(50):
        script.answer = paused("stays", f"round-{number}")
        next(seen)
    script.answer = paused("stays", "fresh")
    stays, fresh = next(seen).connections
    assert (stays.name, fresh.name) == ("stays", "fresh")
    assert stays.paused_seconds and fresh.paused_seconds == 0
    script.answer = json.dumps(PRODUCER | {"connections": [{"name": "stays"}]}).encode()
    assert [each.paused_seconds for each in next(seen).connections] == [None]
    script.answer = paused("stays")
    assert [each.paused_seconds for each in next(seen).connections] == [0]
    sent = {"name": "stays", "paused": "BufferLogFull", "sent_bytes": 1}
    for is_first in (True, False):
        script.answer = json.dumps(PRODUCER | {"connections": [sent]}).encode()
        (stays,) = next(seen).connections
        assert (stays.paused_seconds == 0) == is_first, "it has sent something"


RELAY: dict[str, Any] = {
    "consumers": 2,
    "streams": 4,
    "groups": [{"vbuckets": "0-1", "receivers": 2, "required": 1, "waits_for": "lake"}],
    "upstream": [{"node": "node:1", "is_ready": True, "full_seconds": 1.5}],
}
SAMPLES = """\
relay_consumers 2.0
relay_streams 4.0
relay_group_info{group="0",vbuckets="0-1"} 1.0
relay_group_receivers{group="0"} 2.0
relay_group_lacks_receivers{group="0"} 0.0
relay_group_waits_for{consumer="lake",group="0"} 1.0
relay_upstream_is_ready{node="node:1"} 1.0
relay_upstream_full_seconds_total{node="node:1"} 1.5
"""


def samples(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    figures = next(looks(Scripted({"connections": [], "relay": told}), monkeypatch))
    text = node_shown(figures, metrics=True, as_json=False)
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_groups_are_numbers_whose_vbuckets_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = samples(RELAY, monkeypatch)
    assert set(SAMPLES.splitlines()) <= set(found)
    others = samples(RELAY | {"groups": [RELAY["groups"][0] | {"vbuckets": "1"}]}, monkeypatch)
    assert set(others) ^ set(found) == {
        'relay_group_info{group="0",vbuckets="0-1"} 1.0',
        'relay_group_info{group="0",vbuckets="1"} 1.0',
    }, "the series of a group go on when its vbuckets change"


@pytest.mark.parametrize("missing", list(RELAY))
def test_what_a_relay_of_another_version_does_not_tell_costs_no_other_metric(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {name: value for name, value in RELAY.items() if name != missing} | {"newer": [1]}
    singular = missing.removesuffix("s")
    lost = [line for line in SAMPLES.splitlines() if singular not in line]
    assert set(lost) <= set(samples(told, monkeypatch))


@pytest.mark.parametrize(
    "told",
    [[], {}, {"connections": []}, PRODUCER | {"relay": {"groups": 3}}, {"connections": [{}]}],
)
def test_figures_of_something_else_are_refused(
    told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = looks(Scripted(told), monkeypatch)
    with pytest.raises(SourceError, match=r"figures\.json: found no figures, expected a relay or"):
        next(seen)
