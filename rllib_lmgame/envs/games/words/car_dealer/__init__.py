"""Selling cars by talk."""
