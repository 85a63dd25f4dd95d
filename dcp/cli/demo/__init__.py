"""The command ``dcplake demo``."""
