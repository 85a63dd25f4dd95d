"""The blocking consumer: a socket, a reader thread, and the protocol inside."""
