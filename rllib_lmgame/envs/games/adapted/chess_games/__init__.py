"""Chess against a built-in opponent or an engine, and endgames against perfect defence."""
