"""Servers: games for other programs, a retriever, and the page of ``rllib view``."""
