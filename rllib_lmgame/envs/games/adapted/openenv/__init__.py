"""Environments on servers that speak OpenEnv's protocol, as games."""
