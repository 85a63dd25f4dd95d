"""The producer, the airports and the second act of ``dcplake demo``."""
