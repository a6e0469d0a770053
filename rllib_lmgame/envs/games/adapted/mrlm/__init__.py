"""Environments on servers that speak MRLM's gRPC service, as games."""
