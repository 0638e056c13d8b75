"""Examples: networks and training programs, each runnable by itself."""
