"""What the log store of lakes on S3 does in a bad store, and with keys that are renewed: in a JVM
without Spark.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError

from dcp.errors import LakeError, StoreUnavailableError
from dcp.lake.config.storage_options import s3a_settings
from dcp.lake.spark.failures import known_error
from dcp.lake.spark.jars import LOG_STORE_JAR, delta_jars, s3_jars
from tests.client.drained import wait_for
from tests.lake.object_store import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    ConflictAtFirst,
    Failure,
    ObjectStore,
    Request,
)

pytestmark = pytest.mark.slow

QUICK = {"fs.s3a.attempts.maximum": "1", "fs.s3a.retry.limit": "1"}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the AWS profiles that the JVM knows."""
    return tmp_path_factory.mktemp("aws") / "credentials"


@pytest.fixture(scope="module")
def jvm(profile: Path) -> Iterator[Any]:
    folder = Path(pyspark.__file__).parent / "jars"
    jars = [LOG_STORE_JAR, *delta_jars(), *s3_jars()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
        gateway = JavaGateway.launch_gateway(
            jarpath=str(next(folder.glob("py4j-*.jar"))),
            classpath=":".join([*map(str, jars), f"{folder}/*"]),
            die_on_exit=True,
        )
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def store(jvm: Any) -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()  # it remembers the endpoint


def configuration_of(jvm: Any, store: ObjectStore) -> Any:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for key, value in s3a_settings(f"s3://{BUCKET}", store.options, {}).items():
        configuration.set(key.removeprefix("spark.hadoop."), value)
    for key, value in QUICK.items():
        configuration.set(key, value)
    return configuration


def try_store(jvm: Any, store: ObjectStore) -> None:
    folder = jvm.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/lake")
    jvm.dcplake.S3LogStore.requireConditionalWrites(folder, configuration_of(jvm, store))


def commit(jvm: Any, configuration: Any, content: str, version: int = 0) -> None:
    lines = jvm.java.util.ArrayList()
    lines.add(content)
    path = jvm.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/lake/_delta_log/{version:020}.json")
    log_store = jvm.dcplake.S3LogStore(configuration)
    log_store.write(path, lines.iterator(), False, configuration)


def committed(store: ObjectStore) -> bytes:
    with store.files.open_input_stream(f"{BUCKET}/lake/_delta_log/{0:020}.json") as stream:
        return bytes(stream.read())


def refuses_to_delete(request: Request) -> Failure | None:
    is_delete = request["REQUEST_METHOD"] == "DELETE" or request["QUERY_STRING"] == "delete"
    return ("403 Forbidden", "AccessDenied") if is_delete else None


def test_a_store_that_overwrites_is_refused_as_such_where_the_trial_cannot_be_removed(
    jvm: Any, store: ObjectStore
) -> None:
    store.ignores_conditions = True
    store.answer = refuses_to_delete
    with pytest.raises(Py4JJavaError) as refused:
        try_store(jvm, store)
    error = known_error(refused.value)
    assert isinstance(error, LakeError) and "does not refuse to overwrite" in str(error)
    suppressed = refused.value.java_exception.getSuppressed()
    assert [each.getClass().getSimpleName() for each in suppressed] == ["AccessDeniedException"]


def test_a_write_that_meets_another_request_for_its_key_is_done_again(
    jvm: Any, store: ObjectStore
) -> None:
    store.answer = ConflictAtFirst(times=2)
    commit(jvm, configuration_of(jvm, store), "first")
    assert committed(store) == b"first\n"


def test_a_write_that_meets_another_commit_to_its_key_finds_the_version_taken(
    jvm: Any, store: ObjectStore
) -> None:
    commit(jvm, configuration_of(jvm, store), "first")
    store.answer = ConflictAtFirst(times=2)
    with pytest.raises(Py4JJavaError) as taken:
        commit(jvm, configuration_of(jvm, store), "second")
    name = taken.value.java_exception.getClass().getName()
    assert name == "java.nio.file.FileAlreadyExistsException"
    assert committed(store) == b"first\n"


def test_a_store_that_always_meets_another_request_is_an_outage(
    jvm: Any, store: ObjectStore
) -> None:
    try_store(jvm, store)
    store.answer = ConflictAtFirst(times=100)
    with pytest.raises(Py4JJavaError) as refused:
        commit(jvm, configuration_of(jvm, store), "first")
    error = known_error(refused.value)
    assert (
        isinstance(error, StoreUnavailableError) and "409" in str(error) and "\n" not in str(error)
    )
    assert store.names("lake") == []


@pytest.fixture
def key(store: ObjectStore, tmp_path: Path) -> Path:
    """The file of the access key."""
    file = tmp_path / "key"
    file.write_text(f"{ACCESS_KEY}\r\n")
    del store.options["access_key_id"]
    store.options["access_key_id_file"] = str(file)
    return file


def test_keys_in_files_that_are_renewed_are_taken_at_once(
    jvm: Any, store: ObjectStore, key: Path
) -> None:
    configuration = configuration_of(jvm, store)
    commit(jvm, configuration, "first")
    store.access_keys = {"AKIDRENEWED"}
    key.write_text("AKIDRENEWED")
    commit(jvm, configuration, "second", 1)
    key.write_text("")  # it is being replaced
    commit(jvm, configuration, "third", 2)
    store.access_keys = {ACCESS_KEY}
    assert sorted(store.names("lake/_delta_log")) == [f"{n:020}.json" for n in range(3)]


def test_keys_in_profiles_that_are_renewed_are_taken_soon(
    jvm: Any, store: ObjectStore, profile: Path
) -> None:
    def write(key: str) -> None:
        keys = f"aws_access_key_id = {key}\naws_secret_access_key = {SECRET_KEY}\n"
        profile.write_text(f"[default]\n{keys}")

    write(ACCESS_KEY)
    store.options = {k: v for k, v in store.options.items() if "key" not in k}
    configuration, versions = configuration_of(jvm, store), count(1)
    commit(jvm, configuration, "first")
    write("AKIDRENEWED")
    store.access_keys = {"AKIDRENEWED"}

    def takes_them() -> bool:
        with suppress(Py4JError):  # PySpark may fail to tell a cause that Java has forgotten
            commit(jvm, configuration, "later", next(versions))
            return True
        return False

    wait_for("the new keys", takes_them)


def test_a_machine_that_lacks_the_file_of_a_key_says_which(
    jvm: Any, store: ObjectStore, key: Path
) -> None:
    configuration = configuration_of(jvm, store)
    key.unlink()
    path = jvm.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/lake")
    with pytest.raises(Py4JJavaError) as failed:
        path.getFileSystem(configuration).exists(path)
    assert str(known_error(failed.value)).startswith(
        "lake.storage_options.access_key_id_file: cannot read the file that it names: found no "
        "credentials for the object store; give them"
    )
