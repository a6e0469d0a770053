"""Debates for two before a judge."""
