"""Tasks that need tools."""
