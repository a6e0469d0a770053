"""Selling cars by talk, with a player on each side."""
