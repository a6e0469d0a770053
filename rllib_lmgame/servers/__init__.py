"""Servers: games in the protocols of other programs, a retriever, and the page of ``rllib view``."""
