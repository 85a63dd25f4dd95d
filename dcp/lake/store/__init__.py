"""The places of tables, and looks at them without Spark."""
