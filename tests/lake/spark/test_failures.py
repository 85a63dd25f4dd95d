"""Errors of Spark and the machine, translated to ours: by the texts that they really have."""

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from dcp.errors import (
    DcplakeError,
    LakeError,
    SetupError,
    StoppedError,
    StoreRefusedError,
    StoreUnavailableError,
    VerifyError,
)
from dcp.lake.spark import failures
from dcp.lake.spark.failures import known_error, one_line_error, spark_errors, watch_jvm
from dcp.lake.spark.task_errors import TaskError

REPLICA = "delete the table's folder: the next run creates the table again"
RESYNC = "read the bucket again with dcplake resync"
ELSEWHERE = "set lake.root to a new location and read the bucket there"
CUT = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/docs/x.parquet. S\n"
CASES = [
    *(
        (f"{CUT}Caused by: {cause}\n", StoreUnavailableError, "the object store does not answer")
        for cause in (
            "java.net.SocketException: Connection reset",
            "java.net.SocketTimeoutException: Read timed out",
            "org.apache.http.ConnectionClosedException: Premature end of Content-Length delimited",
            "org.apache.hadoop.fs.s3a.AWSClientIOException: re-open s3a://b/docs/x.parquet: Data",
        )
    ),
    (f"{CUT}Caused by: java.io.IOException: no Parquet", LakeError, "is damaged or gone"),
    (
        "An error occurred while calling o61.sql.\n: org.apache.spark.SparkException: Job aborted\n"
        "\tat x\nCaused by: java.io.IOException: No space left on device\n\tat y",
        SetupError,
        "a disk is full; make room",
    ),
    ("FSError: java.io.IOException: Disk quota exceeded", SetupError, "a disk is full"),
    (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent "
        'call last):\n  File "/a/pyspark/serializers.py", line 454, in loads\n'
        "ModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 38000\n\tat org.apache",
        SetupError,
        "No module named 'pyarrow': tasks have no Python with dcplake; spark.pyspark.python says",
    ),
    (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'dcp'",
        SetupError,
        "ModuleNotFoundError: No module named 'dcp': tasks have no Python with dcplake",
    ),
    (
        'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file',
        SetupError,
        'Cannot run program "./environment/bin/python": tasks have no Python with dcplake',
    ),
    (
        "java.io.FileNotFoundException: /lake/docs/part-1.parquet (Read-only file system)",
        SetupError,
        "/lake/docs/part-1.parquet: this user may not read or write it",
    ),
    (
        "ExitCodeException: Mkdirs failed to create file:/lake/changes (exists=false, cwd=file:/)",
        SetupError,
        "file:/lake/changes: this user may not read or write it",
    ),
    (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
        "file:/lake/changes/part-0.parquet.  SQLSTATE: KD001",
        LakeError,
        f"file:/lake/changes/part-0.parquet: a file of the table is damaged or gone; .*{RESYNC}",
    ),
    (
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file "
        "s3a://b/docs__s__c__8/part-0.parquet. File does not exist.",
        LakeError,
        f"s3a://b/docs__s__c__8/part-0.parquet: a file .*{REPLICA}",
    ),
    (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///l/docs/_delta_log/"
        "00000000000000000003.json.  SQLSTATE: KD001",
        LakeError,
        f"00000000000000000003.json: files of the table's Delta log .*{REPLICA}",
    ),
    (
        "[DELTA_TRUNCATED_TRANSACTION_LOG] file:/l/changes/_delta_log/00000000000000000000.json: "
        "Unable to reconstruct state at version 3",
        LakeError,
        f"files of the table's Delta log are damaged or gone; .*{ELSEWHERE}",
    ),
    (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/other/x.parquet. ",
        LakeError,
        "file:/other/x.parquet: a file of the table is damaged or gone; put it back from a copy$",
    ),
    (
        "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        SetupError,
        r"S3AFileSystem: Spark does not know .* spark\.jars\.packages\. For S3, dcplake adds them",
    ),
    (
        'UnsupportedFileSystemException: No FileSystem for scheme "az"',
        SetupError,
        r'No FileSystem for scheme "az": Spark does not know .* set lake\.storage_options',
    ),
    (
        "java.lang.ClassNotFoundException: dcplake.S3LogStore\n\tat x",
        SetupError,
        r"dcplake\.S3LogStore: found no such class, .* add dcplake's jar",
    ),
    (
        "java.lang.ClassNotFoundException: theirs.LogStore\n\tat java.base/java.lang.Class.forName("
        "Class.java:398)\n\tat org.apache.spark.sql.delta.storage.LogStore$."
        "createLogStoreWithClassName(LogStore.scala:291)",
        SetupError,
        r"failed: theirs\.LogStore: found no such class, expected the log store .* \[spark\.conf\]",
    ),
    (
        "dcplake.S3LogStore$UnsafeStoreException: s3://b at http://h:1: the store does not know If",
        LakeError,
        r"s3://b at http://h:1: the store does not refuse to overwrite .* nothing was committed",
    ),
    (
        "java.lang.NoClassDefFoundError: software/amazon/awssdk/core/SdkClient\n\tat y",
        SetupError,
        r"software/amazon/awssdk/\S+: found no such class, .* spark\.jars\.packages",
    ),
    (
        "java.nio.file.AccessDeniedException: s3a://b/lake/_delta_log: org.apache.hadoop.fs.s3a."
        "CredentialInitializationException: Provider TemporaryAWSCredentialsProvider has no "
        "credentials: java.nio.file.AccessDeniedException: /: org.apache.hadoop.fs.s3a.auth."
        "NoAwsCredentialsException: Session credentials in Hadoop configuration: No AWS "
        "Credentials",
        StoreRefusedError,
        "found no credentials for the object store; give them as AWS_ACCESS_KEY_ID",
    ),
    (
        "java.nio.file.AccessDeniedException: s3a://b/lake/_delta_log: getFileStatus on "
        "s3a://b/lake/_delta_log: software.amazon.awssdk.services.s3.model.S3Exception: Forbidden "
        "(Service: S3, Status Code: 403, Request ID: null):null",
        StoreRefusedError,
        "the object store refused the credentials, or the access that they give; ",
    ),
    (
        "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://b/lake/_delta_log': getFileStatus "
        "on s3a://b/lake/_delta_log: software.amazon.awssdk.services.s3.model."
        "NoSuchBucketException: The specified bucket does not exist (Service: S3, Status Code: 404,"
        " Request ID: x) (SDK Attempt Count: 1)",
        SetupError,
        r"found no such bucket; make it \(dcplake makes none\)",
    ),
    (
        "java.net.ConnectException: getFileStatus on s3a://b/lake/_delta_log: software.amazon."
        "awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Connect to "
        "127.0.0.1:9 [/127.0.0.1] failed: Connection refused (SDK Attempt Count: 6):    software",
        StoreUnavailableError,
        r"HTTP request: Connect to 127\.0\.0\.1:9 \[/127\.0\.0\.1\] failed: Connection refused: "
        "the object store does not answer, or says that it cannot; see that the endpoint in lake",
    ),
    (
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: "
        "PKIX path building failed: sun.security.provider.certpath.SunCertPathBuilderException: "
        "unable to find valid certification path to requested target (SDK Attempt Count: 6)",
        SetupError,
        "the certificate of the object store's endpoint is not trusted; name its authority in",
    ),
    (
        "software.amazon.awssdk.services.s3.model.S3Exception: refused (Service: S3, Status Code: "
        "503, Request ID: null) (SDK Attempt Count: 6)",
        StoreUnavailableError,
        "Status Code: 503: the object store does not answer, or says that it cannot",
    ),
    (
        "software.amazon.awssdk.services.s3.model.S3Exception: refused (Service: S3, Status Code: "
        "409, Request ID: null) (SDK Attempt Count: 1)",
        StoreUnavailableError,
        "Status Code: 409: the object store does not answer, or says that it cannot",
    ),
    (
        "obstore.exceptions.AlreadyExistsError: The object at location a already exists:\n"
        "Error performing PUT http://127.0.0.1:9/b/a in 9ms - Server returned non-2xx status code: "
        "409 Conflict: <Error><Code>ConditionalRequestConflict</Code>",
        StoreUnavailableError,
        "ConditionalRequestConflict: the object store does not answer, or says that it cannot",
    ),
    (
        "Error performing PUT http://127.0.0.1:9/b/a in 9ms - Server returned non-2xx status code: "
        "409 Conflict: <Error><Code>BlobImmutableDueToPolicy</Code>",
        StoreRefusedError,
        "BlobImmutableDueToPolicy: the object store refused the request",
    ),
    (
        "software.amazon.awssdk.services.s3.model.S3Exception: refused (Service: S3, Status Code: "
        "400, Request ID: null) (SDK Attempt Count: 1)",
        StoreRefusedError,
        "Status Code: 400: the object store refused the request",
    ),
]


@pytest.mark.parametrize(("told", "kind", "line"), CASES)
def test_a_cause_that_is_known(told: str, kind: type[DcplakeError], line: str) -> None:
    with pytest.raises(kind, match=line) as found, spark_errors("round 3 failed"):
        raise Py4JError(told)
    assert type(found.value) is kind
    assert str(found.value).startswith("round 3 failed: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("table", "helps"), [("changes", ELSEWHERE), ("docs", REPLICA), ("docs__s__c__8", REPLICA)]
)
def test_a_gap_in_a_log_names_no_file(table: str, helps: str) -> None:
    failure = Py4JError("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 1, 3) are not contiguous.")
    assert helps in str(known_error(failure, f"/data/my table/lake: table {table}"))


@pytest.mark.parametrize(
    ("table", "helps"), [("changes", RESYNC), ("docs", REPLICA), ("undone", "of rollbacks is lost")]
)
def test_a_data_file_that_is_gone_without_its_name(table: str, helps: str) -> None:
    failure = Py4JError("[DELTA_FILE_NOT_FOUND] a file that the transaction log names is gone")
    assert helps in str(known_error(failure, f"/data/my table/lake: table {table}"))


def test_the_cause_of_a_cause_counts() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
        except OSError as cause:
            raise RuntimeError("the task failed") from cause
    except RuntimeError as failure:
        assert isinstance(one_line_error(failure), SetupError)


def test_what_is_ours_stays_and_a_bug_keeps_its_stack() -> None:
    with pytest.raises(VerifyError, match=r"^said so$"), spark_errors("verify"):
        raise VerifyError("said so")
    with pytest.raises(VerifyError, match=r"^said so$"), spark_errors("verify"):
        raise Py4JError(f"Job aborted\n{TaskError(VerifyError('said so'))}\n")
    assert one_line_error(TypeError("a bug")) is None
    with pytest.raises(TypeError), spark_errors("verify"):
        raise TypeError("a bug")


def test_of_another_failure_of_spark_the_innermost_cause_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "kept_spark_log", lambda: Path("/tmp/its/spark.log"))
    failure = Py4JError(
        "An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: "
        "Exception thrown in awaitResult: \n\tat a\nCaused by: java.lang.Odd: x\n\tat b\n"
        "Caused by: java.lang.IllegalStateException: no such thing\n\tat c\n"
    )
    error = one_line_error(failure, "verify")
    assert type(error) is DcplakeError
    assert str(error) == (
        "verify: java.lang.IllegalStateException: no such thing; Spark's log says more: "
        "/tmp/its/spark.log"
    )


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> "Iterator[subprocess.Popen[bytes]]":
    monkeypatch.setattr(failures, "_jvms", [])
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch_jvm(process)
    yield process
    process.kill()
    process.communicate()


def test_a_jvm_that_was_killed(watched: "subprocess.Popen[bytes]") -> None:
    assert one_line_error(TypeError("a bug")) is None, "it runs"
    watched.kill()
    watched.wait()
    assert one_line_error(TypeError("a bug")) is None, "of ours, all the same"
    error = one_line_error(Py4JNetworkError("Answer from Java side is empty"), "round 2 failed")
    assert type(error) is DcplakeError
    assert str(error).startswith("round 2 failed: Spark's JVM has ended (killed by SIGKILL)")


def test_a_jvm_that_answers_while_it_ends(watched: "subprocess.Popen[bytes]") -> None:
    """As after a SIGTERM to the whole process group: what it says then is not the reason."""
    threading.Timer(0.5, watched.terminate).start()
    told = 'Cannot invoke "x" because the return value of "SparkContext.dagScheduler()" is null'
    error = one_line_error(PySparkException(told), "round 2 failed")
    assert isinstance(error, StoppedError)
    assert str(error).startswith("round 2 failed: SIGTERM stopped Spark's JVM")
