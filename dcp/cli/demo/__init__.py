"""What ``dcplake demo`` shows: its producer, its airports and its second act."""
