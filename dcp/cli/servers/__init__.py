"""Commands that start a server, or order what one does."""
