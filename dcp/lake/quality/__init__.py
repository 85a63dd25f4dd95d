"""Checks of data quality."""
