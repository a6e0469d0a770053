"""Whether two answers to a problem of mathematics are the same, whatever form they are written in."""
