"""Models from logs: columns of a table, transitions, signals with limits, and a summary of the data."""
