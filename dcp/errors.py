"""Every error dcplake raises on purpose, as one small tree.

    DcplakeError
      SetupError              something this machine lacks (Java, room on a disk, a right to write)
        StoreUnavailableError   an object store cannot be reached, or says that it cannot answer
        StoreRefusedError       an object store refuses our keys, or there are none
      ConfigError             a setting that is unknown, missing or of the wrong type
        SecretError             a file of a secret or certificate that cannot be used
      LocalProtocolError      our caller misused a protocol object
      RemoteProtocolError     the peer broke the protocol
        FrameError              bytes that are no valid frame or message
      SourceError             the cluster did not do what we need
        AuthenticationError     user or password refused, no shared mechanism
        BucketError             no such bucket, or no access to it
        NodeUnavailableError    a node cannot be reached, died or hangs
        NoRelayError            a node was asked for what only a relay has
      IncompleteRunError      a command did all but a named part: vbuckets, rows or an erasure
      StoppedError            a run was asked to stop before it was done
      LakeError               the tables are not what we left there
        FencedError             another driver writes to the same lake
        ForeignWriteError       somebody else changed a replica table
      QualityError            rows break the data-quality suite, or a value cannot be parsed
      LoadError               `dcplake load`: a line of the file is no document
      VerifyError             a replica differs from the source

Local misuse and remote fault are different classes, so that a caller can tell "fix the code"
from "look at the peer". A message names what, where, found and expected. ``exit_code`` is what the
command line and the Spark jobs end with; ``docs/howto/act-on-an-exit-code.md`` lists the codes.
"""

from typing import ClassVar, Final

REREAD_COMMAND: Final = "dcplake resync"
"""The command that reads a bucket again, if its tables cannot be repaired otherwise."""


class DcplakeError(Exception):
    """Root of all errors that dcplake raises on purpose."""

    exit_code: ClassVar[int] = 1


class SetupError(DcplakeError):
    """This machine lacks something; the message says what to do."""

    exit_code = 3


class StoreUnavailableError(SetupError):
    """An object store cannot be reached, or says that it cannot answer. That may pass."""


class StoreRefusedError(SetupError):
    """An object store refuses our keys, or there are none. Files of keys may be replaced at any
    time.
    """


class ConfigError(DcplakeError):
    """A setting that is unknown, missing or of the wrong type."""

    exit_code = 2


class SecretError(ConfigError):
    """A file of a secret or a certificate cannot be used. It may be replaced at any time."""


class LocalProtocolError(DcplakeError):
    """A caller used a protocol object in a way that its state does not allow."""


class RemoteProtocolError(DcplakeError):
    """The peer broke the protocol; the connection cannot be used further."""

    exit_code = 9


class FrameError(RemoteProtocolError):
    """Bytes that are no valid frame or no valid message."""


class SourceError(DcplakeError):
    """The Couchbase side did not do what dcplake needs."""

    exit_code = 4


class AuthenticationError(SourceError):
    """The server refused user or password, or offers no allowed mechanism."""


class BucketError(SourceError):
    """The bucket does not exist, or the user has no access to it."""


class NoRelayError(SourceError):
    """A node without groups of receivers, which only a relay has, was asked for one."""


class NodeUnavailableError(SourceError):
    """A node cannot be reached, closed the connection, or is silent beyond its deadline."""


class IncompleteRunError(DcplakeError):
    """A command did all but the part that the message names.

    The part may be vbuckets of a run, a backfill or a verification, or rows that too few disks
    have. It may be an erasure that waits or left documents in files. All that a run received is
    committed.
    """

    exit_code = 5


class StoppedError(DcplakeError):
    """A run was asked to stop before its end; its commits stay."""

    exit_code = 130


class LakeError(DcplakeError):
    """The tables are not in the state that this lake's own change log describes."""

    exit_code = 7


class FencedError(LakeError):
    """Another driver writes to the same lake; this one must stop."""

    exit_code = 6


class ForeignWriteError(LakeError):
    """Something other than dcplake changed the rows of a replica table."""


class QualityError(DcplakeError):
    """The data-quality suite found violations; or ``privacy.unparsable`` = fail refused a value."""

    exit_code = 8


class VerifyError(DcplakeError):
    """A replica table and the source hold different documents."""

    exit_code = 10
