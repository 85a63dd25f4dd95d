"""Output of commands: lines, tables, progress and JSON."""
