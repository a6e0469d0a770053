"""Mathematics with answers that are checked exactly, whatever form they are written in."""
