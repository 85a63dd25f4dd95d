"""Lakes on a second, independent S3 server, so that nothing here is a habit of moto's."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.interop.conftest import FOLDER
from tests.lake.commit_race import require_that_only_ours_loses_nothing
from tests.lake.object_store import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.lake.store_reads import require_reads_and_appends

pytestmark = pytest.mark.interop


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    program, data = FOLDER / "go" / "bin" / "versitygw", tmp_path / "data"
    if not program.exists():
        pytest.fail("the S3 server is not built: run `make interop`")
    data.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with (tmp_path / "versitygw.log").open("wb") as log:
        server = subprocess.Popen(
            [program, "--port", address, "posix", data], env=os.environ | keys, stdout=log
        )
    try:
        _make_bucket(address)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(60)


def _make_bucket(address: str) -> None:
    host, _, port = address.partition(":")
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port))).close()
            break
        except OSError:
            assert time.monotonic() < end, "the server does not listen"
            time.sleep(0.1)
    files = pafs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        endpoint_override=address,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    files.create_dir(BUCKET)


@pytest.mark.timeout(900)
def test_two_drivers_that_commit_in_the_same_moment_lose_nothing(
    endpoint: str, tmp_path: Path
) -> None:
    require_that_only_ours_loses_nothing(endpoint, tmp_path)


def test_a_table_is_made_appended_to_and_read_without_spark(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    require_reads_and_appends({"endpoint": endpoint, "allow_http": "true"})
