"""The page of exit codes says how long a run waits for whatever fails."""

import re
from pathlib import Path

import pytest

from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    LakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SecretError,
    SetupError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dcp.lake.run import outages
from dcp.lake.run.outages import Outages

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "act-on-an-exit-code.md"
NO_TIME, FIVE_MINUTES, FOREVER = "no time", "five minutes", "without limit"


def waited(error: DcplakeError, *, is_endless: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fail every minute for an hour, and return in the page's words how long that is outlasted."""
    now = [0.0]
    monkeypatch.setattr(outages, "monotonic", lambda: now[0])
    failures = Outages()
    for minute in range(60):
        now[0] = 60.0 * minute
        try:
            failures.outlast(error, is_endless=is_endless)
        except DcplakeError as raised:
            assert raised is error
            return {0: NO_TIME, 5: FIVE_MINUTES}[minute]
    return FOREVER


@pytest.mark.parametrize(
    ("begins", "errors"),
    [
        ("no node of the cluster answers", [NodeUnavailableError]),
        ("the cluster refuses user", [AuthenticationError, BucketError]),
        ("the file of a secret", [SecretError]),
        ("the object store does not answer", [StoreUnavailableError]),
        ("the object store refuses", [StoreRefusedError]),
        ("a server breaks the protocol", [RemoteProtocolError]),
        ("all else", [LakeError, SetupError]),
    ],
)
def test_the_page_says_how_long_a_run_waits(
    begins: str, errors: list[type[DcplakeError]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.M)
    [(_, endless, once, codes)] = [row for row in rows if row[0].startswith(begins)]
    for error in errors:
        told = [
            waited(error("no"), is_endless=is_endless, monkeypatch=monkeypatch)
            for is_endless in (True, False)
        ]
        assert told == [endless, once], error
        assert str(error.exit_code) in codes.split(", ")
