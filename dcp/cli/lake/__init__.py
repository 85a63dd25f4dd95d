"""Commands that work on a lake."""
