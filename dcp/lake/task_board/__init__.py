"""Monitoring of running tasks: live files, and metrics of them."""
