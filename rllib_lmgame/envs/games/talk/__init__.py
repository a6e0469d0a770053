"""Games in which players talk to each other freely."""
