"""Values that a bucket is made of: versions, manifest, cluster map, rules, settings."""
