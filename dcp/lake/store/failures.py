"""Translates failures of object stores, delta-rs and disks into dcplake's errors.

An error is one line with a remedy. A list has one entry for each known cause, with the messages of
obstore, delta-rs, pyarrow and Spark's connector. `dcp.lake.spark.failures` has Spark's others.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from dcp.errors import (
    REREAD_COMMAND,
    DcplakeError,
    LakeError,
    SecretError,
    SetupError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dcp.lake.config.table_names import AUDIT_TABLE, CHANGES_TABLE, DOCS_TABLE

_COPY: Final = "put it back from a copy"
_REPLICA: Final = f"{_COPY}, or delete the table's folder: the next run creates the table again"
_AUDIT: Final = f"{_COPY}, or delete the table's folder: only its record of rollbacks is lost"
_REMEDIES: Final = {
    (CHANGES_TABLE, False): f"{_COPY}, or read the bucket again with {REREAD_COMMAND}",
    (CHANGES_TABLE, True): f"{_COPY}, or set lake.root to a new location and read the bucket there",
    (DOCS_TABLE, False): _REPLICA,
    (DOCS_TABLE, True): _REPLICA,
    (AUDIT_TABLE, False): _AUDIT,
    (AUDIT_TABLE, True): _AUDIT,
}
"""By the start of the table's name, and whether the file belongs to its Delta log."""

_OVERWRITES: Final = (
    "the store does not refuse to overwrite a file when it is asked to (If-None-Match), so that "
    "two drivers could overwrite each other's commits",
    "keep the lake in a store with conditional writes (docs/howto/object-stores.md has a list), or "
    "update its server; nothing was committed",
)
UNSAFE_STORE: Final = "; ".join(_OVERWRITES)
"""The message about a store that overwrites, with its remedy."""

_BY_OBSTORE: Final = r"Error performing [A-Z]+"
"""The start of a message of obstore and delta-rs about a failed request; the URL follows."""
_BY_METADATA: Final = rf"{_BY_OBSTORE} http://(?:169\.254\.|metadata\.google\.internal)"
_CARRIED: Final = re.compile(r"credential provider: SecretError: ([^\n]*)")
"""obstore wraps a SecretError of our credential provider like this."""
_BY_STORE: Final = (
    rf"{_BY_OBSTORE}|{_CARRIED.pattern}|^PermissionError|Permission denied \(os error 13\)"
)
"""A failure of the store, or of the user's right to read a folder on this machine."""
_TREE: Final = re.compile(r"\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)?\s*")
"""delta-rs starts a new coloured line for each cause; obstore writes a colon instead."""
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_ITS_CODE: Final = r"[^<]*(?:<\?[^<]*)?<Error>\s*<Code>"
"""The text before the code in an S3 error."""
NO_BUCKET: Final = re.compile(
    "NoSuchBucketException|UnknownStoreException|<Code>(?:NoSuchBucket|ContainerNotFound)</Code>"
)
_KNOWN_TO_SPARK: Final = re.compile(
    rf"redirect without LOCATION|{_ITS_CODE}AuthorizationHeaderMalformed"
)
"""The bucket is in another region. Spark's connector finds the region itself."""

_IN_PYTHON: Final = (
    r"(?:OSError|PermissionError): \[Errno \d+\] (?:[^\n]*\. Detail: \[errno \d+\] )?"  # pyarrow's
)
_IN_JAVA: Final = r"(?:IOException|FSError|FileSystemException): (?:.*: )?"


@dataclass(frozen=True, slots=True)
class Cause:
    pattern: re.Pattern[str]
    """Matches the failure's text. A group captures the file that the text names."""
    error: type[DcplakeError]
    found: str
    what_to_do: str = ""
    """If empty, `remedy` chooses by the table and `is_delta_log`."""
    is_delta_log: bool = False
    """True if the file belongs to the table's Delta log."""


UNAVAILABLE: Final = (
    "the object store does not answer, or says that it cannot",
    "see that the endpoint in lake.storage_options is right and can be reached, and run again: "
    "nothing that is committed is lost",
)

CAUSES: Final = (
    Cause(  # first: the store may also have refused to remove the test files
        re.compile(r"UnsafeStoreException: (\S+ at \S+): the store"),
        LakeError,
        *_OVERWRITES,
    ),
    Cause(
        re.compile(rf"{_BY_METADATA}[^\n]*[Ss]tatus code: ((?:5\d\d|429)\b[^:\n]*)"),
        StoreUnavailableError,
        "the metadata service, which gives this machine's keys, does not answer",
        "run again when it does: nothing that is committed is lost",
    ),
    Cause(
        re.compile(
            r"CredentialInitializationException: (lake\.storage_options\.\w+: [\w ]+)"
            r"|NoAwsCredentialsException|NoAuthWithAWSException"
            rf"|{_BY_METADATA}"
        ),
        StoreRefusedError,
        "found no credentials for the object store",
        "give them as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the driver "
        "and of executors, by a profile, by the machine's role, or by a file that "
        "lake.storage_options names (docs/howto/object-stores.md); nothing was committed",
    ),
    Cause(
        re.compile(
            r"<Code>(?:ExpiredToken|ExpiredTokenException|TokenRefreshRequired)</Code>"
            r"|The provided token has expired"
        ),
        StoreRefusedError,
        "the credentials of the object store have expired",
        "renew them and run again: nothing that is committed is lost. Files that "
        "lake.storage_options names are read again while a round goes on, the environment is not",
    ),
    Cause(
        re.compile(
            r"\(Service: S3, Status Code: 40[13]\b"
            rf"|{_BY_OBSTORE} [^\n]* status code: 40[13]\b"
        ),
        StoreRefusedError,
        "the object store refused the credentials, or the access that they give",
        "see that the key and its secret are right, and that it may read, write, list and delete "
        "below lake.root",
    ),
    Cause(
        NO_BUCKET,
        SetupError,
        "found no such bucket",
        "make it (dcplake makes none), or name another in lake.root; see the endpoint in "
        "lake.storage_options, too",
    ),
    Cause(
        re.compile(
            r"PKIX path building failed|SSLPeerUnverifiedException|CertificateException"
            rf"|{_BY_OBSTORE} [\s\S]*(?:invalid peer certificate|InvalidCertificate)"
        ),
        SetupError,
        "the certificate of the object store's endpoint is not trusted",
        "name its authority in SSL_CERT_FILE for this process, and in a trust store for Spark's "
        "Java (docs/howto/object-stores.md, A certificate of your own)",
    ),
    Cause(
        re.compile(
            r"SdkClientException: (Unable to execute HTTP request: [^\n]*?)(?: \(SDK |\n|$)"
            r"|\(Service: S3, (Status Code: (?:5\d\d|40[89]|429))\b"
            rf"|{_BY_OBSTORE} [^\n]*"
            r"(?:[Ss]tatus code: ((?:5\d\d|408|425|429)\b[^:\n]*)"
            # delta-rs writes the cause after colons, obstore inside its structs.
            r"|HTTP error: [\w ]+(?:: client error \(Connect\): ([^\n]+)"
            r'|[\s\S]*?\b(?:message|error): "([^"\n]+)"|)'
            rf"|status code: 40[09]\b{_ITS_CODE}"
            r"(ConditionalRequestConflict|OperationAborted|RequestTimeout)\b)"
        ),
        StoreUnavailableError,
        *UNAVAILABLE,
    ),
    Cause(
        re.compile(
            r"\(Service: S3, (Status Code: 4(?!04|12)\d\d)\b"
            rf"|{_BY_OBSTORE} [^\n]* status code: 4(?!04)\d\d\b(?:{_ITS_CODE}(\w+))?"
        ),
        StoreRefusedError,
        "the object store refused the request",
        "see that the credentials, the region and the endpoint are right "
        "(docs/howto/object-stores.md), and run again: nothing that is committed is lost",
    ),
    Cause(
        re.compile(
            f"(?:{_IN_PYTHON}|{_IN_JAVA})"
            "(?:No space left on device|Disk quota exceeded|File too large)"
        ),
        SetupError,
        "a disk is full",
        "make room where the lake is and where Spark keeps temporary files (spark.local.dir, "
        "TMPDIR), and run again: nothing that is committed is lost",
    ),
    Cause(
        re.compile(
            r"(/\S+) \((?:Permission denied|Read-only file system)\)"
            r"|AccessDeniedException: (/\S+)|\[DELTA_CANNOT_CREATE_LOG_PATH\] Cannot create (\S+)"
            r"|Mkdirs failed to create (\S+)"
            r"|Failed to open local file '([^'\n]*)'\. Detail: \[errno \d+\] "
            "(?:Permission denied|Read-only file system)"
            rf"|{_IN_PYTHON}(?:Permission denied|Read-only file system)(?:: '([^'\n]*)')?"
            rf"|{_IN_JAVA}(?:Permission denied|Read-only file system)"
            r"|Unable to open file (\S+): Permission denied \(os error 13\)"  # from delta-rs
        ),
        SetupError,
        "this user may not read or write it",
        "give the user that right (or mount the file system writable) and run again: nothing that "
        "is committed is lost",
    ),
)


@contextmanager
def translated(error_of: Callable[[Exception], Exception | None]) -> Iterator[None]:
    """Raise ``error_of`` a failure in its place. Our errors pass, and failures without an error."""
    try:
        yield
    except DcplakeError:
        raise
    except Exception as failure:  # of many classes
        if (error := error_of(failure)) is None:
            raise
        raise error from failure


def store_errors(where: str) -> AbstractContextManager[None]:
    """Raise one of our errors, one line that begins with ``where``, for a failure of a store."""

    def error_of(failure: Exception) -> DcplakeError | None:
        if not is_from_store(failure):
            return None
        error = named_cause(_told(failure), where, CAUSES)
        return error or DcplakeError(f"{where}: {plain_line(failure)}")

    return translated(error_of)


def store_error(failure: BaseException, what: str = "") -> DcplakeError | None:
    """Return our error if the store caused a failure of obstore or delta-rs; else None.

    With such a failure, Spark would fail as well. None means that Spark may succeed or say more.
    The message begins with ``what``: the action, or the table.
    """
    if isinstance(failure, SetupError | SecretError):
        return failure
    told = _told(failure)
    if not re.search(_BY_STORE, told) or _KNOWN_TO_SPARK.search(told):
        return None
    return named_cause(told, what, CAUSES)


def is_from_store(failure: BaseException) -> bool:
    module = type(failure).__module__.partition(".")[0]
    # delta-rs raises some of its errors from a module named `_internal`.
    return module in ("deltalake", "_internal", "obstore") or isinstance(failure, OSError)


def named_cause(told: str, what: str, causes: Sequence[Cause]) -> DcplakeError | None:
    """Return the error for the first cause that matches a failure's text; None without one."""
    if (carried := _CARRIED.search(told)) is not None:
        return SecretError(carried[1])
    named = f"{what}: " if what else ""
    for cause in causes:
        if (match := cause.pattern.search(told)) is not None:
            file = next(filter(None, match.groups()), "")
            named_file = f"{file}: " if file else ""
            what_to_do = cause.what_to_do or remedy(file, what, is_delta_log=cause.is_delta_log)
            return cause.error(f"{named}{named_file}{cause.found}; {what_to_do}")
    return None


def remedy(file: str, what: str, *, is_delta_log: bool) -> str:
    """Return the remedy for a damaged file of a table, or of its Delta log.

    The file's path gives the table. Without a file, ``what`` must end with the table's name.
    """
    folder, delta_log, _ = file.partition("/_delta_log")
    named = folder if delta_log else folder.rpartition("/")[0]
    table = named.rpartition("/")[2] if file else what.rpartition("table ")[2]
    return _REMEDIES.get((table.partition("__")[0], is_delta_log), _COPY)


def plain_line(failure: BaseException) -> str:
    """Return a failure's message as one line, without colours and obstore's debug structs."""
    message = str(failure).partition("\n\nDebug source:")[0]
    return " ".join(_COLOUR.sub("", without_breaks(message)).split())


def without_breaks(told: str) -> str:
    return _TREE.sub(": ", told)


def _told(failure: BaseException) -> str:
    return without_breaks(f"{type(failure).__name__}: {failure}")
