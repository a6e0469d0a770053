"""What every other part stands on: errors, texts, files, import paths. It imports neither torch nor Ray."""
