"""Sets of problems of mathematics, with answers of any kind."""
