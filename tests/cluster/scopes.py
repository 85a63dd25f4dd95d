"""Scopes and collections of clusters other than our own, which has methods of the same names."""

from base64 import b64encode
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import quote, urlencode

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.settings import ConnectionSettings
from dcp.protocol.credentials import Credentials
from tests.client.drained import PATIENCE_SECONDS


class HttpScopes:
    """Makes and drops them over a node's management port; who may not is skipped.

    Source: Couchbase's REST API, ``/pools/default/buckets/BUCKET/scopes``.
    """

    def __init__(
        self, node: NodeAddress, connection: ConnectionSettings, credentials: Credentials
    ) -> None:
        self._node, self._connection, self._credentials = node, connection, credentials

    def create_scope(self, name: str) -> None:
        self._order("POST", "", name=name)

    def create_collection(self, scope: str, name: str) -> None:
        self._order("POST", f"/{scope}/collections", name=name)

    def drop_collection(self, scope: str, name: str) -> None:
        self._order("DELETE", f"/{scope}/collections/{name}")

    def drop_scope(self, name: str) -> None:
        self._order("DELETE", f"/{name}")

    def _order(self, method: str, path: str, **form: str) -> None:
        http = HTTPConnection(self._node.host, self._node.port, PATIENCE_SECONDS)
        if (tls := self._connection.tls) is not None:
            http = HTTPSConnection(http.host, http.port, context=tls.client_context())
        account = f"{self._credentials.username}:{self._credentials.password.reveal()}"
        fields = {
            "Authorization": f"Basic {b64encode(account.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        url = f"/pools/default/buckets/{quote(self._connection.bucket)}/scopes{path}"
        try:
            http.request(method, url, urlencode(form), fields)
            answer = http.getresponse()
            said = answer.read().decode(errors="replace")
        finally:
            http.close()
        if answer.status in (401, 403):
            pytest.skip(f"the user may not {method} {url}: {said}")
        assert answer.status == 200, f"{method} {url}: found {answer.status} {said}"
