"""How commands talk: lines, tables, progress and JSON."""
