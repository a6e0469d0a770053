"""TextArena's environments that work without a network, a language model or downloads."""
