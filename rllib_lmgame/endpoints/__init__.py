"""Language models behind OpenAI-compatible servers."""
