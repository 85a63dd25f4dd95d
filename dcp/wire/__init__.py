"""Encodes and decodes the memcached binary protocol with its DCP commands."""
