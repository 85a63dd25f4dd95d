"""A relay: streams each vbucket from a cluster once, stores it, and serves it to many consumers."""
