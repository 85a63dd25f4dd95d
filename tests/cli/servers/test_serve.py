"""``dcplake serve``: which ports its options mean, and which options do not go together."""

from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.bucket_type import BucketType
from tests.producer.tls import CERTIFICATE, KEY, TLS_FILES

TLS = ["--tls-cert", CERTIFICATE, "--tls-key", KEY]
Ports = tuple[int | None, ...]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ClusterSettings]:
    """The settings that would be served."""
    settings: list[ClusterSettings] = []
    monkeypatch.setattr("dcp.producer.serve.serve", settings.append)
    return settings


@pytest.mark.parametrize(
    ("words", "ports"),
    [
        ([], (11210, 8091, None, None)),
        (["--port", "0"], (0, 0, None, None)),
        (["--port", "12000"], (12000, 0, None, None)),
        (["--port", "12000", "--http-port", "9000"], (12000, 9000, None, None)),
        (TLS, (11210, 8091, 11207, 18091)),
        (
            [*TLS, "--port", "0", "--tls-port", "12100", "--https-port", "0"],
            (0, 0, 12100, 0),
        ),
    ],
)
def test_ports(served: list[ClusterSettings], words: list[str], ports: Ports) -> None:
    assert main(["serve", "--nodes", "2", *words]) == 0
    (settings,) = served
    assert settings.first_ports == ports
    assert settings.tls == (TLS_FILES if "--tls-cert" in words else None)


@pytest.mark.parametrize(("words", "folder"), [([], None), (["--data", "kept"], Path("kept"))])
def test_the_data_folder(
    served: list[ClusterSettings], words: list[str], folder: Path | None
) -> None:
    assert main(["serve", *words]) == 0
    assert [settings.data_folder for settings in served] == [folder]


@pytest.mark.parametrize(
    ("words", "regex", "seconds"),
    [
        ([], "", 720.0),
        (["--stuck-name-regex", "eq_dcpq:r.*", "--stuck-timeout", "60"], "eq_dcpq:r.*", 60.0),
    ],
)
def test_who_is_closed_when_stuck(
    served: list[ClusterSettings], words: list[str], regex: str, seconds: float
) -> None:
    assert main(["serve", *words]) == 0
    (settings,) = served
    assert (settings.stuck_name_regex, settings.stuck_timeout_seconds) == (regex, seconds)


@pytest.mark.parametrize("name", ["couchbase", "ephemeral"])
def test_the_bucket_type(served: list[ClusterSettings], name: str) -> None:
    assert main(["serve", "--bucket-type", name]) == 0
    assert [settings.bucket_type for settings in served] == [BucketType(name)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tls-key", KEY], "--tls-require-client-cert: TLS key_file: found no cert_file"),
        ([*TLS, "--tls-require-client-cert"], "requires_client_certificate: found no ca_file"),
        (["--tls-client-ca", CERTIFICATE], "producer tls.cert_file (--tls-cert): found no"),
        (["--tls-port", "12100"], "found some, expected none without a certificate (--tls-cert)"),
        (["--https-port", "0"], "producer tls_port, https_port (--tls-port, --https-port): found"),
        ([*TLS, "--nodes", "4"], "port, tls_port (--port, --tls-port): found 11210 twice"),
        (["--port", "65536"], "--port: found 65536, expected 0 to 65535"),
        (["--port", "65535", "--nodes", "2"], "port (--port): found 65536, expected 0 to"),
        (["--stuck-name-regex", "("], "(--stuck-name-regex): found '(', expected a regular"),
        (["--stuck-name-regex", "a{99999999999999999999}"], "}', expected a regular"),
        (["--stuck-name-regex", "(" * 6000 + ")" * 6000], "expected a regular"),
        (["--nodes", "0"], "--nodes: found 0, expected 1 to 128"),
        (
            ["--bucket-type", "ephemeral", "--data", "kept"],
            "found ephemeral with data_folder (--data), expected",
        ),
    ],
)
def test_options_that_do_not_go_together(
    served: list[ClusterSettings],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    assert main(["serve", *words]) == 2
    assert message in capsys.readouterr().err
    assert served == []
