"""A version without its value, which is on disk: a relay keeps few values in memory."""

from typing import Final

from dcp.server.model.versions import Version


class StoredVersion(Version):
    """A version whose value is on disk only; all other fields are in memory."""

    __slots__ = ()

    @classmethod
    def of(cls, version: Version) -> "StoredVersion":
        stored = cls.__new__(cls)
        for name in _KEPT:
            setattr(stored, name, getattr(version, name))
        stored.value = b""
        stored._wire = _NO_FRAMES
        return stored

    def wire(self, flavour: int) -> tuple[bytes, bytes]:
        """Raise AssertionError: frames for streams are made from checkpoints or disk."""
        raise AssertionError(f"seqno {self.seqno}: found no value for a frame of flavour {flavour}")


_KEPT: Final = sorted(set(Version.__slots__) - {"value", "_wire"})
_NO_FRAMES: Final[dict[int, tuple[bytes, bytes]]] = {}
