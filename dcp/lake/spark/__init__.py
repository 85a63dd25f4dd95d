"""The Spark session, its Java and jars, and what goes wrong with them."""
