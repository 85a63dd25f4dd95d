"""Commands that start a server, order what one does, or show one (``demo``)."""
