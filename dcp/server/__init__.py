"""A DCP server over TCP, of which relays and the reference producer are made."""
