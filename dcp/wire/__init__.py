"""Bytes to messages and back: the memcached binary protocol with its DCP commands."""
