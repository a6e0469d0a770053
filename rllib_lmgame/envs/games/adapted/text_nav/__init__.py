"""TextNav: an errand in a house made by TextWorld."""
