"""A document whose value is on disk only, where nobody needs many values in memory: in a relay."""

from typing import Final

from dcp.server.model.versions import Version


class StoredVersion(Version):
    """A version whose value is on disk only; all else is in memory."""

    __slots__ = ()

    @classmethod
    def of(cls, version: Version) -> "StoredVersion":
        """Return a version without its value."""
        stored = cls.__new__(cls)
        for name in _KEPT:
            setattr(stored, name, getattr(version, name))
        stored.value = b""
        stored._wire = _NO_FRAMES
        return stored

    def wire(self, flavour: int) -> tuple[bytes, bytes]:
        """Raise AssertionError: frames are made of what is in checkpoints or on disk."""
        raise AssertionError(f"seqno {self.seqno}: found no value for a frame of flavour {flavour}")


_KEPT: Final = sorted(set(Version.__slots__) - {"value", "_wire"})
_NO_FRAMES: Final[dict[int, tuple[bytes, bytes]]] = {}
