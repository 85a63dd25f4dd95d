"""What commands show of runs, producers and relays."""
