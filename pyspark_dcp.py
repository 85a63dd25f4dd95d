"""Makes the format ``dcp`` known: PySpark looks into each module whose name begins like this."""

from dcp.lake.receive.data_source import DcpDataSource as DefaultSource

__all__ = ["DefaultSource"]
