"""One vbucket: its documents, versions in memory and on disk, sync writes and replica."""
