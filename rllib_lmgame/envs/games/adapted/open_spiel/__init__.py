"""OpenSpiel's games: of perfect and imperfect information, with chance, of moves in turn and at once."""
