"""Text to SQL."""
