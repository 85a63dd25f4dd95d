"""Translates failures of Spark, its JVM and the machine into our errors: one line with a remedy.

Spark wraps a cause many times, in different ways. This module therefore searches the texts of the
whole chain, with the stacks of Java and Python, for patterns of known causes.
"""

import re
import signal
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError

from dcp.errors import (
    DcplakeError,
    FencedError,
    LakeError,
    SetupError,
    StoppedError,
    StoreUnavailableError,
)
from dcp.lake.spark.leftovers import kept_spark_log
from dcp.lake.spark.task_errors import original_error
from dcp.lake.store.failures import (
    CAUSES,
    UNAVAILABLE,
    Cause,
    is_from_store,
    named_cause,
    translated,
    without_breaks,
)
from dcp.lake.store.table import CommitConflictError, MissingVersionError

JVM_SECONDS: Final = 10.0
"""A JVM may take so many seconds to end, because it removes files."""

CONFLICT: Final = re.compile(r"\[?(DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)[\w.]*)")
"""Delta's error conditions if another commit came first; the statement wrote nothing."""

_CAUSES: Final = (
    Cause(
        re.compile(r"NoClassDefFoundError: (software/amazon/\S+)"),
        SetupError,
        "found no such class, expected the AWS SDK that hadoop-aws needs",
        "let dcplake bring its jars: leave hadoop-aws out of spark.jars.packages, or name the AWS "
        "SDK there, too (docs/howto/object-stores.md)",
    ),
    *CAUSES,
    Cause(
        re.compile(
            r"thrown from the Python worker[.:][\s\S]*?\n(ModuleNotFoundError: [^\n]*)"
            r'|IOException: (Cannot run program "[^"\n]*")'
        ),
        SetupError,
        "tasks have no Python with dcplake",
        "spark.pyspark.python says which they run in, and dcplake package makes one that travels "
        "with the job (docs/howto/deploy.md)",
    ),
    Cause(
        re.compile(
            r"ClassNotFoundException: Class (\S+FileSystem\S*) not found"
            r'|(No FileSystem for scheme "\w+")'
        ),
        SetupError,
        "Spark does not know the file system of lake.root",
        "add its jars: [spark.conf] spark.jars.packages. For S3, dcplake adds them if it starts "
        "the session; for another session, such as a Spark Connect server, add them where it "
        "starts. To read without Spark at Google and Azure, set lake.storage_options "
        "(docs/howto/object-stores.md)",
    ),
    Cause(
        re.compile(r"ClassNotFoundException: (dcplake\.\w+)"),
        SetupError,
        "found no such class, expected the log store of lakes on S3 in this Spark session",
        "add dcplake's jar where the session starts (docs/howto/object-stores.md)",
    ),
    Cause(
        re.compile(
            r"ClassNotFoundException: (\S+)\n(?:\s*at [^\n]*\n)*?"
            r"\s*at [^\n]*\.delta\.storage\.(?:Delegating)?LogStore"
        ),
        SetupError,
        "found no such class, expected the log store that a setting spark.delta.logStore.* names",
        "correct the setting in [spark.conf], or where Spark gets it, or add the jar that has the "
        "class to spark.jars (docs/howto/object-stores.md)",
    ),
    Cause(
        re.compile(
            r"\[DELTA_(?:VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG|STATE_RECOVER_ERROR|"
            r"LOG_FILE_NOT_FOUND\w*|MISSING_PART_FILES|CREATE_TABLE_WITH_NON_EMPTY_LOCATION)\]"
            r"(?: (\w*:?/\S+?):)?"
            r"|while reading file (\S+/_delta_log/\S+?)\.?\s"
            r"|FileNotFoundException: (?:File )?(\S+/_delta_log/\S+)"
        ),
        LakeError,
        "files of the table's Delta log are damaged or gone",
        is_delta_log=True,
    ),
    Cause(
        re.compile(
            r"\[FAILED_READ_FILE\b[^\n]* reading file (?!file:)\w+:/[\s\S]*?\b("
            r"(?:Socket|SocketTimeout|SSL|Connect|NoRouteToHost|UnknownHost|ConnectionClosed"
            r"|AWSClientIO)Exception\b[^\n]*)"
        ),
        StoreUnavailableError,
        *UNAVAILABLE,
    ),
    Cause(
        re.compile(
            r"\[FAILED_READ_FILE\b[^\n]* reading file (\S+?)\.?\s"
            r"|FileNotFoundException: (?:File )?(\S+\.(?:parquet|bin))\b"
            r"|\[(?:DELTA_FILE_NOT_FOUND\w*|DELTA_DELETION_VECTOR\w*)\]"
        ),
        LakeError,
        "a file of the table is damaged or gone",
    ),
    Cause(
        re.compile(r"UnknownHostException: ([^\s:]+): [^\n]*\n[^\n]*\.InetAddress\.getLocalHost\("),
        SetupError,
        "this machine's own name does not resolve",
        "add the name to /etc/hosts, or set SPARK_LOCAL_IP to the address of this machine",
    ),
    Cause(
        re.compile(r"invalid null input: name|basedir must be absolute: \?"),
        SetupError,
        "the system has no name for this user, and Java needs one",
        "give the user a line in /etc/passwd, or run as a user who has one (docs/howto/deploy.md)",
    ),
    Cause(
        re.compile(r"UnsatisfiedLinkError: (/\S+?): [^\n]*failed to map segment"),
        SetupError,
        "Java cannot load its native library from there: the folder is mounted noexec",
        "name another folder for temporary files in TMPDIR, or in -Djava.io.tmpdir= of "
        "spark.driver.extraJavaOptions and spark.executor.extraJavaOptions",
    ),
    Cause(
        re.compile(
            r"Failed to create a temp directory \(under ([^)\n]+)\)"
            r"|Failed to create local dir in ([^\n]+?)\.? Ignoring"
        ),
        SetupError,
        "Spark cannot make a folder for its temporary files there",
        "name a folder that this user can write to in TMPDIR, or in spark.local.dir and "
        "SPARK_LOCAL_DIRS where they are set",
    ),
    Cause(
        re.compile(r"parquet\.org\.apache\.thrift\.\S*Exception"),  # a checkpoint's footer
        LakeError,
        "files of the table's Delta log are damaged or gone",
        is_delta_log=True,
    ),
    Cause(
        CONFLICT,  # last: a failure while a conflict was handled matters more
        FencedError,
        "another writer committed to the table in the same moment, so that this statement wrote "
        "nothing",
        "run it again",
    ),
)


_NO_CAUSE: Final = re.compile(
    r"\s|WARNING:|NOTE:|Picked up |Warning: |Error occurred during initialization of VM"
    r"|\d{4}-\d\d-\d\dT\S+ (?:WARN|INFO) "
)
"""Lines of a JVM's output that do not explain its end."""


def known_error(failure: BaseException, what: str = "") -> DcplakeError | None:
    """Return our error for a failure with a known cause; None for any other.

    The message begins with ``what``: the action, or the table. If a task raised a `TaskError`, the
    function returns the task's original error.
    """
    told = _told(failure)
    known = original_error(told) or named_cause(told, what, _CAUSES)
    if known is not None:
        return known
    named = f"{what}: " if what else ""
    if (code := _ended_jvm(failure)) is None:
        return None
    if code in _TERMINATED:
        return StoppedError(
            f"{named}SIGTERM stopped Spark's JVM, as if sent to the whole process group: run "
            "again, nothing that is committed is lost"
        )
    ended = f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
    return DcplakeError(
        f"{named}Spark's JVM has ended ({ended}), perhaps because memory ran out: run again, "
        "nothing that is committed is lost"
    )


def start_cause(failure: BaseException, spark_log: Path) -> str:
    """Return from the JVM's output why Spark did not start: Python's exception does not say it."""
    try:
        logged = spark_log.read_text("utf-8", "replace")
    except OSError:
        logged = ""
    told = f"{_told(failure)}\n{logged}"
    known = original_error(told) or named_cause(told, "", _CAUSES)
    if known is None and "JAVA_GATEWAY_EXITED" in told:
        return _printed_cause(logged) or "its JVM ended, and printed nothing"
    return str(known or known_error(failure) or innermost(failure))


def _printed_cause(logged: str) -> str:
    causes = re.findall(r'^(?:Caused by:|Exception in thread "main") (.*)$', logged, re.M)
    if causes:
        return str(causes[-1])
    lines = [line for line in logged.splitlines() if line and not _NO_CAUSE.match(line)]
    return lines[0].strip() if lines else ""


def one_line_error(failure: BaseException, what: str = "") -> DcplakeError | None:
    """Return `known_error`, or another failure's message in one line; None for our own bugs."""
    if (known := known_error(failure, what)) is not None or not _is_from_outside(failure):
        return known
    named = f"{what}: " if what else ""
    spark_log = kept_spark_log()
    more = "" if spark_log is None else f"; Spark's log says more: {spark_log}"
    return DcplakeError(f"{named}{innermost(failure)}{more}")


def spark_errors(what: str) -> AbstractContextManager[None]:
    """Raise one of our errors, one line that begins with ``what``, for a failure of Spark."""
    return translated(lambda failure: one_line_error(failure, what))


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _told(failure: BaseException) -> str:
    told = "\n".join(
        getattr(each, "_stackTrace", "") + "".join(traceback.format_exception_only(each))
        for each in _chain(failure)
    )
    return without_breaks(told)


def innermost(failure: BaseException) -> str:
    causes = re.findall(r"^(?:Caused by)?: (\S*(?:Exception|Error)\b.*)$", _told(failure), re.M)
    return causes[-1] if causes else str(failure).strip().partition("\n")[0]


def _is_from_outside(failure: BaseException) -> bool:
    if isinstance(failure, CommitConflictError | MissingVersionError):
        return True
    module = type(failure).__module__.partition(".")[0]
    return module in ("pyspark", "py4j", "delta") or is_from_store(failure)


_jvms: "list[subprocess.Popen[bytes]]" = []


def watch_jvm(process: "subprocess.Popen[bytes]") -> None:
    """Remember the JVM that this process started, to recognise its end as the cause of failures."""
    _jvms[:] = [process]


_SHUTTING_DOWN: Final = re.compile(
    r"dagScheduler\(\)\" is null|dagScheduler\(\) is null|stopped SparkContext"
    r"|SparkContext was shut down|Shutdown in progress"
)
"""Errors from a JVM that is ending, for example after a SIGTERM to its process group."""


_TERMINATED: Final = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes after SIGTERM. A JVM that handles the signal exits with the second."""


def _ended_jvm(failure: BaseException) -> int | None:
    """Return the exit code of our JVM; None if it runs, or if it belongs to another process."""
    for process in _jvms:
        is_ending = _SHUTTING_DOWN.search(_told(failure)) is not None
        if not is_ending and not any(map(_is_lost_connection, _chain(failure))):
            continue
        with suppress(subprocess.TimeoutExpired):
            process.wait(JVM_SECONDS)
        code = process.poll()
        if code is not None:
            return code
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _is_lost_connection(failure: BaseException) -> bool:
    answers = isinstance(failure, Py4JJavaError)
    return isinstance(failure, Py4JError | ConnectionError | EOFError) and not answers
