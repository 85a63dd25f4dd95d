"""dcplake: a Couchbase bucket, kept as Delta Lake tables by its DCP stream."""

__version__ = "0.1.0"
