"""The engine of dcplake: wire format, client, relay, producer, Spark pipeline and commands.

Python programs import ``dcplake``, which is the public API over this package.
"""

__version__ = "0.1.0"
