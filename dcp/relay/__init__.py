"""A replica server: each vbucket comes once from a cluster, and goes to any number of consumers."""
