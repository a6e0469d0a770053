"""Running text that is not ours."""
