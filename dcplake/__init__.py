"""dcplake in Python, for notebooks and scripts: ``dcplake.open()`` (docs/howto/python.md)."""

from dcp import __version__
from dcp.errors import DcplakeError
from dcplake.lake import Lake, open

__all__ = ["DcplakeError", "Lake", "__version__", "open"]
