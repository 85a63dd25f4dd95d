"""Values from which a bucket is built: versions, manifest, cluster map, rules, settings."""
