"""One vbucket: its documents and versions in memory and on disk, its sync writes, its copy."""
