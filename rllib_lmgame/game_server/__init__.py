"""Games served to programs of others, in the protocols that these speak."""
