"""The interfaces of a lake's store and tables, their places, and access to them without Spark."""
