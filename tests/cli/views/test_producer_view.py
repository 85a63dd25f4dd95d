"""The view of a producer or a relay, from scripted answers."""

import pytest

from dcp.cli.views.producer_metrics import producer_exposition
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
    assert view.relay == {}
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


RELAY = {
    "relay:consumers": "2",
    "relay:streams": "4",
    "relay:group:0": "vbuckets 0-1: 2 of 1 receivers",
    "relay:group:0:vbuckets": "0-1",
    "relay:group:0:members": "2",
    "relay:group:0:is_held": "false",
    "relay:group:0:waits_for": "lake",
    "relay:upstream:node:1:is_ready": "true",
    "relay:upstream:node:1:full_seconds": "1.5",
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


def samples(told: dict[str, str]) -> list[str]:
    lines = producer_exposition([], told).splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_groups_are_numbers_whose_vbuckets_are_told_once() -> None:
    assert samples(RELAY) == SAMPLES.splitlines()
    others = samples(RELAY | {"relay:group:0:vbuckets": "1"})
    assert set(others) ^ set(SAMPLES.splitlines()) == {
        'relay_group_info{group="0",vbuckets="0-1"} 1.0',
        'relay_group_info{group="0",vbuckets="1"} 1.0',
    }, "the series of a group go on when its vbuckets change"


@pytest.mark.parametrize("missing", list(RELAY))
@pytest.mark.parametrize("text", [None, "", "n/a", "nan", "1_0"])
def test_what_a_relay_does_not_tell_costs_no_other_metric(missing: str, text: str | None) -> None:
    told = {name: value for name, value in RELAY.items() if name != missing}
    told |= {} if text is None else {missing: text}
    assert len(set(SAMPLES.splitlines()) - set(samples(told))) <= 1
