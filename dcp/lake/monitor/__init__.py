"""A running task as others see it: live files, and metrics."""
