"""The collections manifest as a server tells it: read back, and refused with the reason."""

import pytest

from dcp.errors import RemoteProtocolError
from dcp.producer.manifest_changes import CreateCollection, CreateScope, changed
from dcp.relay.upstream_manifest import parse_manifest
from dcp.server.model.manifest import FIRST


def test_what_the_producer_tells() -> None:
    manifest = changed(FIRST, [CreateScope("s"), CreateCollection("s", "c", 77)])
    found = parse_manifest(manifest.as_json())
    assert found.as_json() == manifest.as_json()
    assert (found.uid, dict(found.collections)) == (manifest.uid, dict(manifest.collections))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"uid":1,"scopes":[]}',
        b'{"uid":"z","scopes":[]}',
        b'{"uid":"1","scopes":[{"uid":"0","name":1,"collections":[]}]}',
        b'{"uid":"1","scopes":[{"uid":"0","name":"s"}]}',
        b'{"uid":"1","scopes":[{"uid":"0","name":"s","collections":[{"uid":"8","name":"c","maxTTL":"1"}]}]}',
        b"\xff",
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="collections manifest: found"):
        parse_manifest(data)
