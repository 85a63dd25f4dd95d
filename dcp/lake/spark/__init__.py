"""The Spark session, its Java and jars, and the errors they raise."""
