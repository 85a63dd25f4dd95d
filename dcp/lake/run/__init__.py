"""Rounds, applies and requests: everything that drives a lake."""
