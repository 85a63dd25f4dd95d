"""Monitoring of running tasks: the task board, and metrics of it."""
