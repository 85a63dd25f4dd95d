"""The view of a producer or a relay, from scripted answers."""

import json
from typing import Any

import pytest

from dcp.cli.views.producer_view import ProducerView
from dcp.errors import NodeUnavailableError, SourceError

Answer = dict[str, str] | SourceError


class Scripted:
    """Stands in for a connection to a node: one answer for each group."""

    def __init__(self, dcp: Answer, relay: Answer) -> None:
        refused = SourceError("refused with status 0x0001")
        self.answers = {"dcp": dcp, "relay": relay, "producer": refused}

    def log_in(self, user: str, password: str, bucket: str, *, mechanisms: tuple[str, ...]) -> None:
        pass

    def statistics(self, group: str, options: bytes = b"") -> dict[str, str]:
        answer = self.answers[group]
        if isinstance(answer, SourceError):
            raise answer
        return answer

    def close(self) -> None:
        pass


def view_of(script: Scripted, monkeypatch: pytest.MonkeyPatch) -> ProducerView:
    monkeypatch.setattr("dcp.cli.views.producer_view.KvConnection", lambda *_: script)
    return ProducerView("127.0.0.1:1", "user", "password", "default")


def paused(*names: str) -> dict[str, str]:
    values = {"type": "producer", "paused": "true", "paused_reason": "BufferLogFull"}
    return {f"eq_dcpq:{name}:{key}": value for name in names for key, value in values.items()}


def test_a_node_that_is_lost_between_two_questions_is_no_node_without_a_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Scripted({}, SourceError("refused with status 0x0001"))
    view = view_of(script, monkeypatch)
    view.refresh()
    assert view.relay is None
    script.answers["relay"] = NodeUnavailableError("closed the connection")
    with pytest.raises(NodeUnavailableError, match="closed the connection"):
        view.refresh()


def test_connections_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted({}, {})
    view = view_of(script, monkeypatch)
    for number in range(50):
        script.answers["dcp"] = paused("stays", f"round-{number}")
        view.refresh()
    assert set(view._paused) == {"stays", "round-49"}
    stays, fresh = sorted(view.connections, key=lambda each: each.paused_seconds or 0, reverse=True)
    assert (stays.name, fresh.name) == ("stays", "round-49")
    assert stays.paused_seconds and not fresh.paused_seconds


RELAY: dict[str, Any] = {
    "consumers": 2,
    "streams": 4,
    "groups": [{"vbuckets": "0-1", "members": 2, "required": 1, "waits_for": "lake"}],
    "upstream": [{"node": "node:1", "is_ready": True, "full_seconds": 1.5}],
}
SAMPLES = """\
relay_consumers 2.0
relay_streams 4.0
relay_group_info{group="0",vbuckets="0-1"} 1.0
relay_group_members{group="0"} 2.0
relay_group_is_held{group="0"} 0.0
relay_group_gating{consumer="lake",group="0"} 1.0
relay_upstream_is_ready{node="node:1"} 1.0
relay_upstream_full_seconds_total{node="node:1"} 1.5
"""


def samples(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    view = view_of(Scripted({}, {"relay": json.dumps(told)}), monkeypatch)
    view.refresh()
    return [line for line in view.metrics().splitlines() if not line.startswith("#")]


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


@pytest.mark.parametrize("told", ["", "n/a", "[]", '{"groups": 3}', '{"groups": [{}]}'])
def test_figures_of_something_else_are_those_of_no_relay(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_of(Scripted({}, {"relay": told}), monkeypatch)
    view.refresh()
    assert view.relay is None
