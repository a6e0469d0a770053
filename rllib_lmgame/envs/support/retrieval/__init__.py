"""Searching a corpus of passages: files of them, vectors and their index, and retrievers behind an address.

FAISS, torch and Transformers are imported where they are used, not with this package.
"""
