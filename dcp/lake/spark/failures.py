"""Translates failures of Spark, its JVM and the machine into our errors: one line with a remedy.

Spark wraps a cause many times, in ways that depend on where it came up. So the texts of the whole
chain are searched, Java's stack and Python's, by a table with one row for each known cause.
"""

import re
import signal
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError

from dcp.errors import (
    REREAD_COMMAND,
    DcplakeError,
    FencedError,
    LakeError,
    SecretError,
    SetupError,
    StoppedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dcp.lake.spark.leftovers import kept_log
from dcp.lake.spark.task_errors import original_error

_JVM_SECONDS: Final = 10.0
"""A JVM may take this long to end after its connections closed."""

_COPY: Final = "put it back from a copy"
_REPLICA: Final = f"{_COPY}, or delete the table's folder: the next run makes the table again"
_AUDIT: Final = f"{_COPY}, or delete the table's folder: only what it told of rollbacks is lost"
_REMEDIES: Final = {
    ("changes", False): f"{_COPY}, or read the bucket again with {REREAD_COMMAND}",
    ("changes", True): f"{_COPY}, or set lake.root to a new place and read the bucket again there",
    ("docs", False): _REPLICA,
    ("docs", True): _REPLICA,
    ("undone", False): _AUDIT,
    ("undone", True): _AUDIT,
}
"""By table (each replica's name begins with ``docs``), and whether the file is of its Delta log."""

_OVERWRITES: Final = (
    "the store does not refuse to overwrite a file when it is asked to (If-None-Match), so that "
    "two drivers could overwrite each other's commits",
    "keep the lake in a store with conditional writes (docs/object-stores.md has a list), or "
    "update its server; nothing was committed",
)
UNSAFE_STORE: Final = "; ".join(_OVERWRITES)
"""The finding about a store that overwrites, with its remedy."""

_BY_OBSTORE: Final = r"Error performing [A-Z]+"
"""Begins the message of obstore and delta-rs for a failed request; the URL follows."""
_BY_STORE: Final = rf"{_BY_OBSTORE}|^PermissionError|Permission denied \(os error 13\)"
"""The same, or the user may not read a folder of this machine."""
_TREE: Final = re.compile(r"\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)?\s*")
"""delta-rs breaks a line so, in colours; obstore has a colon there."""
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_ITS_CODE: Final = r"[^<]*(?:<\?[^<]*)?<Error>\s*<Code>"
"""Stands before the code of an S3 error."""
_KNOWN_TO_SPARK: Final = re.compile(
    rf"redirect without LOCATION|{_ITS_CODE}AuthorizationHeaderMalformed"
)
"""The store says that the bucket is in another region, which Spark's connector finds."""
_CARRIED: Final = re.compile(r"credential provider: SecretError: ([^\n]*)")
"""obstore wraps an error of ours so, raised when it asked for keys."""

CONFLICT: Final = re.compile(r"\[?(DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)[\w.]*)")
"""Delta's conditions if another commit came first; nothing was written then."""

_IN_PYTHON: Final = (
    r"(?:OSError|PermissionError): \[Errno \d+\] (?:[^\n]*\. Detail: \[errno \d+\] )?"  # pyarrow's
)
_IN_JAVA: Final = r"(?:IOException|FSError|FileSystemException): (?:.*: )?"


@dataclass(frozen=True, slots=True)
class _Cause:
    pattern: re.Pattern[str]
    """Matches the failure's text. A group is the file that it names."""
    error: type[DcplakeError]
    found: str
    what_to_do: str = ""
    """Without it the remedy follows from the table, and from `is_log`."""
    is_log: bool = False
    """True if the file belongs to the table's Delta log."""


_CAUSES: Final = (
    _Cause(  # first: the store may also have refused to remove what was tried with
        re.compile(r"UnsafeStoreException: (\S+ at \S+): the store"),
        LakeError,
        *_OVERWRITES,
    ),
    _Cause(
        re.compile(r"NoClassDefFoundError: (software/amazon/\S+)"),
        SetupError,
        "found no such class, expected the AWS SDK that hadoop-aws needs",
        "let dcplake bring its jars: leave hadoop-aws out of spark.jars.packages, or name the AWS "
        "SDK there, too (docs/object-stores.md)",
    ),
    _Cause(
        re.compile(
            r"CredentialInitializationException: (lake\.storage_options\.\w+: [\w ]+)"
            r"|NoAwsCredentialsException|NoAuthWithAWSException"
            rf"|{_BY_OBSTORE} http://(?:169\.254\.|metadata\.google\.internal)"
        ),
        StoreRefusedError,
        "found no credentials for the object store",
        "give them as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the driver "
        "and of executors, by a profile, by the machine's role, or by a file that "
        "lake.storage_options names (docs/object-stores.md); nothing was committed",
    ),
    _Cause(
        re.compile(
            r"<Code>(?:ExpiredToken|ExpiredTokenException|TokenRefreshRequired)</Code>"
            r"|The provided token has expired"
        ),
        StoreRefusedError,
        "the credentials of the object store have ended",
        "renew them and run again: nothing that is committed is lost. Files that "
        "lake.storage_options names are read again while a round goes on, the environment is not",
    ),
    _Cause(
        re.compile(
            r"\(Service: S3, Status Code: 40[13]\b"
            rf"|{_BY_OBSTORE} [^\n]* status code: 40[13]\b"
        ),
        StoreRefusedError,
        "the object store refused the credentials, or what was done with them",
        "see that the key and its secret are right, and that it may read, write, list and delete "
        "below lake.root",
    ),
    _Cause(
        re.compile(r"NoSuchBucketException|UnknownStoreException|<Code>NoSuchBucket</Code>"),
        SetupError,
        "found no such bucket",
        "make it (dcplake makes none), or name another in lake.root; see the endpoint in "
        "lake.storage_options, too",
    ),
    _Cause(
        re.compile(
            r"SdkClientException: (Unable to execute HTTP request: [^\n]*?)(?: \(SDK |\n|$)"
            r"|\(Service: S3, (Status Code: (?:5\d\d|409))\b"
            rf"|{_BY_OBSTORE} [^\n]*"
            r"(?:[Ss]tatus code: ((?:5\d\d|429)\b[^:\n]*)|HTTP error: [^\n]*"
            rf"|status code: 409\b{_ITS_CODE}(ConditionalRequestConflict|OperationAborted)\b)"
        ),
        StoreUnavailableError,
        "the object store does not answer, or says that it cannot",
        "see that the endpoint in lake.storage_options is right and can be reached, and run again: "
        "nothing that is committed is lost",
    ),
    _Cause(
        re.compile(
            r"\(Service: S3, (Status Code: 4(?!04|12)\d\d)\b"
            rf"|{_BY_OBSTORE} [^\n]* status code: 4(?!04)\d\d\b(?:{_ITS_CODE}(\w+))?"
        ),
        StoreRefusedError,
        "the object store refused what it was asked",
        "see that the credentials, the region and the endpoint are right "
        "(docs/object-stores.md), and run again: nothing that is committed is lost",
    ),
    _Cause(
        re.compile(
            f"(?:{_IN_PYTHON}|{_IN_JAVA})"
            "(?:No space left on device|Disk quota exceeded|File too large)"
        ),
        SetupError,
        "a disk is full",
        "make room where the lake is and where Spark keeps temporary files (spark.local.dir, "
        "TMPDIR), and run again: nothing that is committed is lost",
    ),
    _Cause(
        re.compile(
            r"(/\S+) \((?:Permission denied|Read-only file system)\)"
            r"|AccessDeniedException: (/\S+)|\[DELTA_CANNOT_CREATE_LOG_PATH\] Cannot create (\S+)"
            r"|Mkdirs failed to create (\S+)"
            r"|Failed to open local file '([^'\n]*)'\. Detail: \[errno \d+\] "
            "(?:Permission denied|Read-only file system)"
            rf"|{_IN_PYTHON}(?:Permission denied|Read-only file system)(?:: '([^'\n]*)')?"
            rf"|{_IN_JAVA}(?:Permission denied|Read-only file system)"
            r"|Unable to open file (\S+): Permission denied \(os error 13\)"  # as delta-rs tells it
        ),
        SetupError,
        "this user may not read or write it",
        "give the user that right (or mount the file system writable) and run again: nothing that "
        "is committed is lost",
    ),
    _Cause(
        re.compile(
            r"thrown from the Python worker[.:][\s\S]*?\n(ModuleNotFoundError: [^\n]*)"
            r'|IOException: (Cannot run program "[^"\n]*")'
        ),
        SetupError,
        "tasks have no Python with dcplake",
        "spark.pyspark.python says which they run in, and dcplake package makes one that travels "
        "with the job (docs/deploy.md)",
    ),
    _Cause(
        re.compile(r"ClassNotFoundException: Class (\S+FileSystem) not found"),
        SetupError,
        "found no such class, expected Spark to know the file system of lake.root",
        "add its jars: [spark.conf] spark.jars.packages. For S3 dcplake does it in a session that "
        "it starts; of another, such as a server of Spark Connect, who starts it "
        "(docs/object-stores.md)",
    ),
    _Cause(
        re.compile(r"ClassNotFoundException: (dcplake\.\w+)"),
        SetupError,
        "found no such class, expected the log store of lakes on S3 in this Spark session",
        "who starts the session adds dcplake's jar (docs/object-stores.md)",
    ),
    _Cause(
        re.compile(
            r"\[DELTA_(?:VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG|STATE_RECOVER_ERROR|"
            r"LOG_FILE_NOT_FOUND\w*|MISSING_PART_FILES|CREATE_TABLE_WITH_NON_EMPTY_LOCATION)\]"
            r"(?: (\w*:?/\S+?):)?"
            r"|while reading file (\S+/_delta_log/\S+?)\.?\s"
            r"|FileNotFoundException: (?:File )?(\S+/_delta_log/\S+)"
        ),
        LakeError,
        "files of the table's Delta log are damaged or gone",
        is_log=True,
    ),
    _Cause(
        re.compile(
            r"\[FAILED_READ_FILE\b[^\n]* reading file (\S+?)\.?\s"
            r"|FileNotFoundException: (?:File )?(\S+\.(?:parquet|bin))\b"
            r"|\[(?:DELTA_FILE_NOT_FOUND\w*|DELTA_DELETION_VECTOR\w*)\]"
        ),
        LakeError,
        "a file of the table is damaged or gone",
    ),
    _Cause(
        re.compile(r"UnknownHostException: ([^\s:]+): [^\n]*\n[^\n]*\.InetAddress\.getLocalHost\("),
        SetupError,
        "this machine's own name does not resolve",
        "add the name to /etc/hosts, or set SPARK_LOCAL_IP to the address of this machine",
    ),
    _Cause(
        re.compile(r"invalid null input: name|basedir must be absolute: \?"),
        SetupError,
        "the system has no name for this user, and Java needs one",
        "give the user a line in /etc/passwd, or run as a user who has one (docs/deploy.md)",
    ),
    _Cause(
        re.compile(r"UnsatisfiedLinkError: (/\S+?): [^\n]*failed to map segment"),
        SetupError,
        "Java cannot load its native library from there: the folder is mounted noexec",
        "name another folder for temporary files in TMPDIR, or in -Djava.io.tmpdir= of "
        "spark.driver.extraJavaOptions and spark.executor.extraJavaOptions",
    ),
    _Cause(
        re.compile(
            r"Failed to create a temp directory \(under ([^)\n]+)\)"
            r"|Failed to create local dir in ([^\n]+?)\.? Ignoring"
        ),
        SetupError,
        "Spark cannot make a folder for its temporary files there",
        "name a folder that this user can write to in TMPDIR, or in spark.local.dir and "
        "SPARK_LOCAL_DIRS where they are set",
    ),
    _Cause(
        re.compile(r"parquet\.org\.apache\.thrift\.\S*Exception"),  # a checkpoint's footer
        LakeError,
        "files of the table's Delta log are damaged or gone",
        is_log=True,
    ),
    _Cause(
        CONFLICT,  # last: what failed while a conflict was handled counts more
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
"""Lines of a JVM's output that do not say why it ended."""


def known_error(failure: BaseException, what: str = "") -> DcplakeError | None:
    """Return our error for a failure with a known cause; None for any other.

    The line begins with ``what``: the action, or its place. A task's `TaskError` becomes its
    original error.
    """
    told = _told(failure)
    if (error := original_error(told) or _carried(told) or _named_cause(told, what)) is not None:
        return error
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
        f"{named}Spark's JVM has ended ({ended}), maybe for want of memory: run again, nothing "
        "that is committed is lost"
    )


def store_error(failure: BaseException, what: str = "") -> DcplakeError | None:
    """Return our error for a failure of obstore or delta-rs that the store caused.

    Spark would fail, too. Returns a SetupError or SecretError as it is. None for any other: only
    Spark can read the table, a file is damaged or gone, or Spark finds a way to the store.
    ``what``: see `known_error`.
    """
    if isinstance(failure, SetupError | SecretError):
        return failure
    told = _TREE.sub(": ", f"{type(failure).__name__}: {failure}")
    if (carried := _carried(told)) is not None:
        return carried
    if not re.search(_BY_STORE, told) or _KNOWN_TO_SPARK.search(told):
        return None
    return _named_cause(told, what)


def _carried(told: str) -> SecretError | None:
    match = _CARRIED.search(told)
    return None if match is None else SecretError(match[1])


def _named_cause(told: str, what: str) -> DcplakeError | None:
    named = f"{what}: " if what else ""
    for cause in _CAUSES:
        if (match := cause.pattern.search(told)) is not None:
            file = next(filter(None, match.groups()), "")
            place = f"{file}: " if file else ""
            what_to_do = cause.what_to_do or remedy(file, what, is_log=cause.is_log)
            return cause.error(f"{named}{place}{cause.found}; {what_to_do}")
    return None


def start_cause(failure: BaseException, log_file: Path) -> str:
    """Return the JVM's last words on why Spark did not start: Python was told nothing."""
    try:
        logged = log_file.read_text("utf-8", "replace")
    except OSError:
        logged = ""
    told = f"{_told(failure)}\n{logged}"
    known = original_error(told) or _named_cause(told, "")
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
    """Return `known_error`, or another failure's message in one line; None for our bugs."""
    if (known := known_error(failure, what)) is not None or not _is_from_outside(failure):
        return known
    named = f"{what}: " if what else ""
    log = kept_log()
    more = "" if log is None else f"; Spark's log has the whole of it: {log}"
    return DcplakeError(f"{named}{innermost(failure)}{more}")


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Pass on our errors; turn Spark's into one line that begins with ``what``."""
    try:
        yield
    except DcplakeError:
        raise
    except Exception as failure:  # Spark's own class, or the bridge's, by where it failed
        if (error := one_line_error(failure, what)) is None:
            raise
        raise error from failure


def remedy(file: str, what: str, *, is_log: bool) -> str:
    """Return the remedy for a damaged file of a table, or of its Delta log.

    The table is the file's. Without a file, ``what`` ends with the table's name.
    """
    folder, log, _ = file.partition("/_delta_log")
    named = folder if log else folder.rpartition("/")[0]
    table = named.rpartition("/")[2] if file else what.rpartition("table ")[2]
    return _REMEDIES.get((table.partition("__")[0], is_log), _COPY)


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _told(failure: BaseException) -> str:
    told = "\n".join(
        getattr(each, "_stackTrace", "") + "".join(traceback.format_exception_only(each))
        for each in _chain(failure)
    )
    return _TREE.sub(": ", told)


def innermost(failure: BaseException) -> str:
    causes = re.findall(r"^(?:Caused by)?: (\S*(?:Exception|Error)\b.*)$", _told(failure), re.M)
    return causes[-1] if causes else str(failure).strip().partition("\n")[0]


def plain_line(failure: BaseException) -> str:
    """Return a failure's message in one line, without delta-rs's colours or obstore's structs."""
    message = str(failure).partition("\n\nDebug source:")[0]
    return " ".join(_COLOUR.sub("", _TREE.sub(": ", message)).split())


def _is_from_outside(failure: BaseException) -> bool:
    """Return whether Spark, a disk, a store or delta-rs (module ``_internal``) failed."""
    module = type(failure).__module__.partition(".")[0]
    is_theirs = module in ("pyspark", "py4j", "delta", "deltalake", "_internal", "obstore")
    return is_theirs or isinstance(failure, OSError)


_jvms: "list[subprocess.Popen[bytes]]" = []


def watch_jvm(process: "subprocess.Popen[bytes]") -> None:
    """Remember the JVM that this process started, to tell its end from other failures."""
    _jvms[:] = [process]


_SHUTTING_DOWN: Final = re.compile(
    r"dagScheduler\(\)\" is null|dagScheduler\(\) is null|stopped SparkContext"
    r"|SparkContext was shut down|Shutdown in progress"
)
"""Answers of a JVM that ends: by a SIGTERM to the whole process group, say."""


_TERMINATED: Final = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes after SIGTERM; a JVM ends itself then, with the second."""


def _ended_jvm(failure: BaseException) -> int | None:
    """Return the exit code of the JVM that this process started; None if it runs or is
    another's.
    """
    for process in _jvms:
        is_ending = _SHUTTING_DOWN.search(_told(failure)) is not None
        if not is_ending and not any(map(_is_lost_connection, _chain(failure))):
            continue
        with suppress(subprocess.TimeoutExpired):
            process.wait(_JVM_SECONDS)
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
    """Return whether the JVM may have ended: it did not answer (`Py4JJavaError` is an answer)."""
    answers = isinstance(failure, Py4JJavaError)
    return isinstance(failure, Py4JError | ConnectionError | EOFError) and not answers
