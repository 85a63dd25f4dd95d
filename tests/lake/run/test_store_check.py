"""The doctor's trials of an object store, and what a command that commits says of a bad one."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from dcp.errors import DcplakeError, LakeError, SetupError, StoreUnavailableError
from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.config.settings import LakeSettings, Settings
from dcp.lake.run.set_up_check import CheckedStep
from dcp.lake.run.store_check import try_store
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.object_location import ObjectLocation
from dcp.lake.tables.lake_tables import find_lake
from tests.lake.object_store import BUCKET, ConflictAtFirst, Failure, ObjectStore, Request
from tests.producer.tls import CERTIFICATE, KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIST = "store list"
WRITE = "store write"
COMMIT = "store commit"
SWAP = "store swap"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        store.options["max_retries"] = "1"
        yield store


def never() -> "SparkSession":
    raise AssertionError("Spark was started")


def tried(location: ObjectLocation) -> list[CheckedStep]:
    steps: list[CheckedStep] = []
    try_store(location, never, location.url, steps.append)
    return steps


def test_a_good_store_is_listed_written_read_and_left_as_it_was(store: ObjectStore) -> None:
    prefix = uuid4().hex
    steps = tried(store.location(prefix))
    assert [(each.name, each.state) for each in steps] == [
        (f"store {name}", "ok") for name in ("list", "write", "read", "commit", "swap", "delete")
    ]
    listed = f"listed {prefix}/_delta_log, files: 0"
    assert steps[0].found == f"s3://{BUCKET} at {store.endpoint}: {listed}"
    assert steps[3].found == "it refused to overwrite the file"
    assert steps[4].found == "it swapped the file once, and refused the second time"
    assert store.names(prefix) == []


@pytest.mark.parametrize(
    ("failure", "step", "error", "said"),
    [
        (("GET", "403 Forbidden", "AccessDenied"), LIST, SetupError, "refused the credentials"),
        (("GET", "400 Bad Request", "ExpiredToken"), LIST, SetupError, "have expired; renew them"),
        (("GET", "404 Not Found", "NoSuchBucket"), LIST, SetupError, "found no such bucket"),
        (("PUT", "403 Forbidden", "AccessDenied"), WRITE, SetupError, "refused the credentials"),
        (("PUT", "501 Not Implemented", "NotImplemented"), WRITE, LakeError, "does not refuse to"),
        (("PUT", "503 Slow Down", "SlowDown"), WRITE, SetupError, "503 Service Unavailable: the"),
        (("PUT", "429 Too Many", "TooMany"), WRITE, SetupError, "429 Too Many Requests: the obj"),
    ],
)
def test_the_first_trial_that_fails_says_what_to_do(
    store: ObjectStore,
    failure: tuple[str, str, str],
    step: str,
    error: type[DcplakeError],
    said: str,
) -> None:
    method, *answer = failure

    def answered(request: Request) -> Failure | None:
        return (answer[0], answer[1]) if request["REQUEST_METHOD"] == method else None

    store.answer = answered
    steps: list[CheckedStep] = []
    with pytest.raises(error, match=said) as told:
        try_store(store.location("any"), never, "", steps.append)
    assert steps[-1].name == step and steps[-1].state == "failed"
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (("503 Slow Down", "SlowDown"), "503 Service Unavailable: the object store does not"),
        (("403 Forbidden", "AccessDenied"), "refused the credentials"),
        (("400 Bad Request", "ExpiredToken"), "have expired; renew them"),
        (("412 Precondition Failed", "PreconditionFailed"), None),
        (("501 Not Implemented", "NotImplemented"), None),
    ],
)
def test_a_swap_fails_only_where_the_store_fails(
    store: ObjectStore, failure: Failure, said: str | None
) -> None:
    """None: the store cannot swap, and need not."""
    prefix = uuid4().hex
    store.answer = lambda request: failure if "HTTP_IF_MATCH" in request else None
    steps: list[CheckedStep] = []
    with nullcontext() if said is None else pytest.raises(SetupError, match=said):
        try_store(store.location(prefix), never, "", steps.append)
    swap = next(step for step in steps if step.name == SWAP)
    assert (swap.state, "dcplake can do without" in swap.found) == (
        ("ok", True) if said is None else ("failed", False)
    )
    assert store.names(prefix) == []


def test_a_store_that_overwrites_is_refused_by_doctor_and_before_anything_is_written(
    store: ObjectStore,
) -> None:
    store.ignores_conditions = True
    prefix = uuid4().hex
    for refused in (tried, ObjectLocation.can_commit, ObjectLocation.can_commit):
        with pytest.raises(LakeError, match=r"at http://\S+: the store does not refuse to overw"):
            refused(store.location(prefix))
    assert store.names(prefix) == []
    store.ignores_conditions = False
    asked: list[str] = []
    store.answer = lambda request: asked.append(request["REQUEST_METHOD"])
    assert store.location(prefix).can_commit()
    assert asked == ["PUT", "PUT", "POST"]
    assert store.location(prefix).can_commit()
    assert len(asked) == 3, "a store is tried once"


def test_a_trial_that_meets_another_request_for_its_file_goes_on(store: ObjectStore) -> None:
    store.answer = ConflictAtFirst(times=1)
    assert {each.state for each in tried(store.location("any"))} == {"ok"}
    assert store.location("any").can_commit()


def test_a_machine_without_credentials_says_so_soon(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    for name in ("access_key_id", "secret_access_key_file"):
        del store.options[name]
    with pytest.raises(SetupError, match="found no credentials for the object store; give them"):
        tried(store.location("any"))


@contextmanager
def endpoint_with_our_certificate() -> Iterator[str]:
    """Give the URL of a server whose authority nobody trusts; it answers no request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)

    def shake_hands(server: socket.socket) -> None:
        with suppress(OSError):  # the client refuses, and the server is closed in the end
            while True:
                with suppress(ssl.SSLError):
                    context.wrap_socket(server.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=shake_hands, args=(server,), daemon=True).start()
        yield f"https://localhost:{server.getsockname()[1]}"


def test_an_endpoint_that_cannot_be_used_is_told_with_its_cause(store: ObjectStore) -> None:
    with endpoint_with_our_certificate() as endpoint:
        store.options["endpoint"] = endpoint
        with pytest.raises(SetupError, match=r"certificate .* is not trusted; name its authority"):
            tried(store.location("x"))
        lake = SparkStore(never, location_on(store, uuid4().hex))
        with pytest.raises(SetupError, match=r"certificate .* is not trusted; name its authority"):
            find_lake(lake)
    for host, cause in (
        ("127.0.0.1:9", "Connection refused"),
        ("nobody.invalid:9", "failed to lo"),
    ):
        store.options["endpoint"] = f"http://{host}"
        with pytest.raises(
            StoreUnavailableError, match=f"{cause}.*: the object store does not ans"
        ):
            tried(store.location("x"))


@pytest.mark.parametrize("variable", ["AWS_CONDITIONAL_PUT", "AWS_COPY_IF_NOT_EXISTS"])
@pytest.mark.parametrize("value", ["disabled", "rubbish"])
def test_variables_do_not_take_conditional_writes_away(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert {each.state for each in tried(store.location(uuid4().hex))} == {"ok"}
    assert find_lake(SparkStore(never, location_on(store, uuid4().hex))) is None


def location_on(store: ObjectStore, prefix: str) -> LakeLocation:
    settings = Settings(
        lake=LakeSettings(
            root=f"s3://{BUCKET}/{prefix}", storage_options=MappingProxyType(store.options)
        )
    )
    return lake_location(settings)
