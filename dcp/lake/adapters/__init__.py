"""Implements the interfaces of `dcp.lake.store` with files, catalogs and Spark."""
