"""Figures of a lake from its own tables: as metrics, as a page, and over HTTP."""
