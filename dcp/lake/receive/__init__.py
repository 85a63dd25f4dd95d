"""One task: streams in, batches of the change log out."""
