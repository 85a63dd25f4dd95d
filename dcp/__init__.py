"""The engine of dcplake, which keeps a Couchbase bucket as Delta Lake tables; import ``dcplake``."""

__version__ = "0.1.0"
