"""Servers of object stores that `make interop` has built, each with an empty bucket."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from unittest.mock import patch

import pyarrow.fs as pafs
import pytest

from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.opening import opened_store
from dcp.lake.config.settings import LakeSettings, Settings
from dcp.lake.store.object_location import ObjectLocation
from tests.interop.conftest import FOLDER
from tests.interop.xml_api import xml_api
from tests.lake.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore

AZURE_ACCOUNT: Final = "devstoreaccount1"
AZURE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's only account, as its documentation has it."""

_SECONDS_TO_START: Final = 60.0


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A server, by the root and the options that a user would write for it."""

    root: str
    options: Mapping[str, str]

    def table(self, name: str) -> FileTable:
        """Return a table of a lake there; it need not be there, and no Spark reads it."""
        lake = LakeSettings(root=self.root, storage_options=dict(self.options))
        settings = Settings(lake=lake)
        with opened_store(settings, starts_spark=False) as store:
            table = store.table(name)
        assert isinstance(table, FileTable)
        return table

    def location(self, name: str) -> ObjectLocation:
        """Return the place of such a table."""
        location = self.table(name).location
        assert isinstance(location, ObjectLocation)
        return location


@contextmanager
def moto(_: Path) -> Iterator[StoreServer]:
    with ObjectStore() as store:
        yield StoreServer(f"s3://{BUCKET}/lake", store.options)


@contextmanager
def versitygw(folder: Path) -> Iterator[StoreServer]:
    address, data = _free_address(), folder / "data"
    data.mkdir(parents=True)
    program = FOLDER / "go" / "bin" / "versitygw"
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with _served([program, "--port", address, "posix", data], address, folder, keys):
        pafs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(BUCKET)
        options = {
            "endpoint": f"http://{address}",
            "allow_http": "true",
            "access_key_id": ACCESS_KEY,
            "secret_access_key_file": _kept(folder / "secret", SECRET_KEY),
        }
        yield StoreServer(f"s3://{BUCKET}/lake", options)


@contextmanager
def azurite(folder: Path) -> Iterator[StoreServer]:
    address = _free_address()
    host, port = address.split(":")
    program = FOLDER.parents[1] / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    words = ["--blobHost", host, "--blobPort", port, "--inMemoryPersistence"]
    switches = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with _served([program, *words, *switches], address, folder):
        pafs.AzureFileSystem(
            AZURE_ACCOUNT,
            account_key=AZURE_KEY,
            blob_storage_authority=address,
            blob_storage_scheme="http",
        ).create_dir(BUCKET)
        options = {
            "azure_storage_account_name": AZURE_ACCOUNT,
            "azure_storage_account_key_file": _kept(folder / "key", AZURE_KEY),
            "azure_storage_use_emulator": "true",
            "allow_http": "true",
        }
        with patch.dict(os.environ, AZURITE_BLOB_STORAGE_URL=f"http://{address}"):
            yield StoreServer(f"az://{BUCKET}/lake", options)


@contextmanager
def fake_gcs_server(folder: Path) -> Iterator[StoreServer]:
    address = _free_address()
    host, port = address.split(":")
    program = FOLDER / "go" / "bin" / "fake-gcs-server"
    words = ["-scheme", "http", "-host", host, "-port", port, "-public-host", address]
    memory = ["-backend", "memory"]
    with _served([program, *words, *memory], address, folder), xml_api(address) as front:
        pafs.GcsFileSystem(
            anonymous=True, scheme="http", endpoint_override=address, project_id="any"
        ).create_dir(BUCKET)
        account = {
            "gcs_base_url": f"http://{front}",
            "disable_oauth": True,  # it asks nobody who they are
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        options = {
            "google_service_account": _kept(folder / "account.json", json.dumps(account)),
            "allow_http": "true",
        }
        yield StoreServer(f"gs://{BUCKET}/lake", options)


SERVERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[StoreServer]]]] = (
    MappingProxyType(
        {
            "moto": moto,
            "versitygw": versitygw,
            "azurite": azurite,
            "fake-gcs-server": fake_gcs_server,
        }
    )
)


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _kept(file: Path, content: str) -> str:
    file.write_text(content)
    return str(file)


@contextmanager
def _served(
    command: Sequence[str | Path],
    address: str,
    folder: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Let a program serve at an address; its log is in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if not Path(command[0]).exists():
        pytest.fail(f"{command[0]} is missing: run the tests with `make interop`, which builds it")
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_it_listens(server, address, folder)
        yield
    finally:
        server.terminate()
        server.wait(60)


def _wait_until_it_listens(server: "subprocess.Popen[bytes]", address: str, folder: Path) -> None:
    host, port = address.split(":")
    end = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            socket.create_connection((host, int(port))).close()
            return
        except OSError:
            is_late = server.poll() is not None or time.monotonic() > end
            assert not is_late, (folder / "server.log").read_text()
            time.sleep(0.1)
