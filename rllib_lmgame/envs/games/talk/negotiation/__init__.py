"""Sharing out a pool of things by talk."""
