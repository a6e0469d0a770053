"""WebArena: tasks on whole web sites in a real browser."""
