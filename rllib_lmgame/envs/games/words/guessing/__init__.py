"""Games of questions: find an object, find a city."""
