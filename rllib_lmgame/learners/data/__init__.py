"""From played episodes to batches of tokens: rows, sharding over learners, packing."""
