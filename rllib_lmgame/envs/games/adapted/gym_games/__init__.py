"""Environments of Gymnasium, played in text."""
