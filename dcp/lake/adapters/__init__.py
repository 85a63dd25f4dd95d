"""The adapters of the ports in `dcp.lake.store`: files, catalogs, and what only Spark finds."""
