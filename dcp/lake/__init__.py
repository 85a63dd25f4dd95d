"""Spark and Delta: the change log, the replica tables, and the rounds that keep them."""
