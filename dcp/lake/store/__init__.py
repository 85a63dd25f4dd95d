"""Interfaces of a lake's store and tables, their locations, and access to them without Spark."""
