"""Protocol logic without I/O: bytes and times go in, events and bytes come out."""
