"""Figures of a lake from its own tables, as metrics and as a page; tasks are ``monitor``'s."""
