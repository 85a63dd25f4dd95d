"""The Spark session with its Java and jars, and the translation of its errors."""
