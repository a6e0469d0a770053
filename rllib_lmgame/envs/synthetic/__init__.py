"""Stand-ins for data sets: levels that games make up where none are published, or none were fetched."""
