"""A replica server: streams each vbucket from a cluster once, and serves it to many consumers."""
