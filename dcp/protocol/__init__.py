"""Sans-I/O machines of the DCP client: bytes and time go in, events and bytes come out."""
