"""Whoever reads JSON that others wrote is ready for 200,000 nested brackets: its own error.

Also deep in the stack of a caller, where Python's own limit is nearer.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.errors import ConfigError, RemoteProtocolError
from dcp.lake.quality.suite import load_suite
from dcp.lake.tables.collections import replicas_of
from dcp.lake.tables.history import parse_metadata
from dcp.relay.upstream_manifest import parse_manifest
from dcp.server.storage.bucket_record import BucketRecord
from dcp.wire.xattr import xattrs_json

DEEP = 200_000
TEXTS = [b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP]


def _cluster_map(text: bytes) -> object:
    return ClusterMap.parse(text, NodeAddress("127.0.0.1", 1))


def deep_in_the_stack(work: Callable[[], object], calls: int | None = None) -> object:
    """Call it where Python takes some hundred calls more, or after so many calls."""
    if calls is None:
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        calls = sys.getrecursionlimit() - depth - 600
    return work() if calls <= 0 else deep_in_the_stack(work, calls - 1)


@pytest.mark.parametrize("text", TEXTS, ids=["open", "lists", "objects"])
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (_cluster_map, RemoteProtocolError),
        (replicas_of, RemoteProtocolError),
        (parse_manifest, RemoteProtocolError),
        (BucketRecord.decode, ConfigError),
    ],
)
def test_a_reader(read: Callable[[bytes], object], error: type[Exception], text: bytes) -> None:
    for calls in (0, None):
        with pytest.raises(error) as found:
            deep_in_the_stack(lambda: read(text), calls)
        assert len(str(found.value)) < 1_000, "it quotes no more than a part"


@pytest.mark.parametrize("text", TEXTS, ids=["open", "lists", "objects"])
def test_metadata_that_others_wrote_into_a_commit_is_not_ours(text: bytes) -> None:
    assert parse_metadata('{"dcplake":' + text.decode() + "}") == {}


def test_a_suite_of_a_user(tmp_path: Path) -> None:
    file = tmp_path / "suite.json"
    file.write_bytes(TEXTS[1])
    with pytest.raises(ConfigError, match=r"found no valid JSON: .* levels"):
        load_suite(file)


@pytest.mark.parametrize(("depth", "is_json"), [(1, True), (1_000, True), (1_001, False)])
def test_an_xattr_is_json_to_the_depth_that_a_producer_takes_whoever_reads_it(
    depth: int, is_json: bool
) -> None:
    value = b"[" * depth + b"]" * depth
    text = value.decode()
    expected = f'{{"x":{text}}}' if is_json else f'{{"x":"{text}"}}'
    assert xattrs_json(((b"x", value),)) == expected
    assert deep_in_the_stack(lambda: xattrs_json(((b"x", value),))) == expected
