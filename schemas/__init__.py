"""Data-quality suites and schemas, kept as data; installed as the package ``dcp.schemas``."""
