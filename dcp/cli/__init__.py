"""The ``dcplake`` command."""
