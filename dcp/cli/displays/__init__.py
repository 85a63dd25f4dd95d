"""Displays of runs, producers and relays."""
