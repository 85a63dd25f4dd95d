"""Makes the format ``dcp`` known: PySpark looks into each module whose name begins like this."""

from dcp.lake.receive.source import DcpSource as DefaultSource

__all__ = ["DefaultSource"]
