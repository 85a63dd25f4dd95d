"""The package that Python programs import: ``dcplake.open()`` (docs/howto/python.md).

The engine behind it is the package ``dcp``.
"""

from dcp import __version__
from dcp.errors import DcplakeError
from dcplake.lake import Lake, open

__all__ = ["DcplakeError", "Lake", "__version__", "open"]
