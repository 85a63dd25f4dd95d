"""Makes sessions beside others: same Spark application, but separate settings and views.

dcplake works beside a user's session, and applies beside the session that receives. A session's
settings, such as the time zone or the fence of a commit, affect all its statements.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_SETTINGS: Final["WeakKeyDictionary[SparkSession, dict[str, str]]"] = WeakKeyDictionary()
"""The settings that `note_settings` stores."""


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_same(one: SparkSession, other: SparkSession) -> bool:
    if one is other or is_connect(one) or is_connect(other):
        return one is other
    try:
        return bool(one._jsparkSession == other._jsparkSession)
    except (Py4JError, OSError):  # the JVM of one of them has ended
        return False


def note_settings(spark: SparkSession) -> None:
    """Store a session's settings for sessions beside it. No statement may be running."""
    _SETTINGS[spark] = dict(spark.conf.getAll)


def session_beside(spark: SparkSession) -> SparkSession:
    """Return a new session with the stored settings of ``spark``, or else its present ones.

    A running statement changes the present ones (`dcp.lake.adapters.transaction`).
    """
    theirs: Any = spark  # Spark Connect has a separate class
    beside: SparkSession = theirs.cloneSession() if is_connect(spark) else spark.newSession()
    _adopt(beside, _SETTINGS.get(spark) or dict(spark.conf.getAll))
    return beside


class SessionBeside:
    def __init__(self, start_spark: Callable[[], SparkSession]) -> None:
        """``start_spark`` returns the other session."""
        self._start_spark = start_spark
        self.begun: SparkSession | None = None

    def __call__(self) -> SparkSession:
        if self.begun is None:
            self.begun = session_beside(self._start_spark())
        return self.begun


def end_sessions_beside(spark: SparkSession, sessions: Sequence[SparkSession]) -> None:
    for session in sessions:
        if is_connect(session):  # its client would query the server at exit, which may be gone
            client: Any = session.client
            client.close()
    if sessions:
        make_active(spark)


def make_active(spark: SparkSession) -> None:
    if not is_connect(spark):
        with suppress(Py4JError, OSError):  # the JVM has ended; the run reports it
            spark.createDataFrame([], "a INT")  # PySpark then makes this session the active one


def _adopt(session: SparkSession, settings: dict[str, str]) -> None:
    found = dict(session.conf.getAll)
    for key in found.keys() - settings.keys():
        session.conf.unset(key)
    for key, value in settings.items():
        if found.get(key) != value:
            session.conf.set(key, value)
