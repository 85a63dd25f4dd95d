"""The tables of a lake: schemas, commits, history, and the states of vbuckets in them."""
