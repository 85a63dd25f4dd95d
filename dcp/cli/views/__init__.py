"""Views of runs, producers and relays."""
