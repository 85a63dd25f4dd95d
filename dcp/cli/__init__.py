"""The `dcplake` command."""
