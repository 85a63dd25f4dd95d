"""The formulas of producer and relay as functions: what they grow with, and what the docs say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.memory import producer_bytes
from dcp.relay.memory import relay_bytes, relay_bytes_in_words
from dcp.relay.settings import RelaySettings
from dcp.server.commands.memory_formula import (
    DISK_ITEM_BYTES,
    DOCUMENT_BYTES,
    FIXED_BYTES,
    MEBIBYTE,
    STREAM_BYTES,
    Load,
    clients_bytes,
)
from dcp.server.model.versions import OVERHEAD_BYTES
from tests.client.drained import CREDENTIALS

LOAD = Load(documents=1_000)


def _settings(**changed: Any) -> RelaySettings:
    chosen: dict[str, Any] = {
        "upstream": ("localhost:1",),
        "bucket": "default",
        "credentials": CREDENTIALS,
        "data_folder": Path("relay"),
    }
    return RelaySettings(**(chosen | changed))


@pytest.mark.parametrize(
    ("changed", "more_bytes"),
    [
        ({"window_bytes": 11 * MEBIBYTE}, MEBIBYTE),
        ({"checkpoint_quota_bytes": 260 * MEBIBYTE}, 5 * MEBIBYTE),
    ],
)
def test_a_relay_grows_with_its_settings(changed: dict[str, int], more_bytes: int) -> None:
    before = relay_bytes(_settings(), LOAD)
    assert relay_bytes(_settings(**changed), LOAD) - before == more_bytes


@pytest.mark.parametrize(
    ("changed", "more_bytes"),
    [
        ({"documents": 1_001}, OVERHEAD_BYTES + DISK_ITEM_BYTES + 32),
        ({"key_bytes": 33}, 1_000),
        ({"streams": 1}, STREAM_BYTES),
        ({"connections": 2}, DOCUMENT_BYTES + MEBIBYTE + 144 * 1024),
    ],
)
def test_a_relay_grows_with_its_load(changed: dict[str, int], more_bytes: int) -> None:
    before = relay_bytes(_settings(), LOAD)
    assert relay_bytes(_settings(), replace(LOAD, **changed)) - before == more_bytes


def test_a_relay_reads_from_nodes() -> None:
    one, two = (relay_bytes(_settings(), LOAD, nodes) for nodes in (1, 2))
    assert two - one == 10 * MEBIBYTE + 4 * DOCUMENT_BYTES


def test_a_producer_has_values_and_perhaps_a_disk_log() -> None:
    sizes = {"checkpoint_quota_bytes": MEBIBYTE, "values_bytes": 7}
    before = producer_bytes(LOAD, **sizes)
    assert producer_bytes(LOAD, **sizes, disk_log_bytes=9) - before == 9
    assert producer_bytes(LOAD, checkpoint_quota_bytes=MEBIBYTE, values_bytes=8) - before == 1


def test_a_relay_keeps_no_values_in_memory_that_are_on_disk() -> None:
    assert not _settings().served("", 1).keeps_values


def test_the_docs_say_the_same() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "memory.md").read_text()
    assert f"{FIXED_BYTES // MEBIBYTE} MiB + keys" in text
    assert f"K × ({OVERHEAD_BYTES + DISK_ITEM_BYTES} bytes + k)" in text
    assert f"S × {STREAM_BYTES // 1024} KiB" in text
    small = clients_bytes(Load(0, connections=200, largest_bytes=64 * 1024))
    assert f"With documents up to 64 KiB all clients take {small // MEBIBYTE} MiB." in text


def test_what_an_operator_is_told() -> None:
    assert relay_bytes_in_words(_settings()) == (
        "at most 632 MiB, for each key 736 bytes and its length, for each client 21 MiB "
        "(documents of 20 MiB), for each node of the cluster but one 90 MiB"
    )
