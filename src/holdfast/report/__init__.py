"""Records of runs, and the figures, tables, claims and HTML page made from them."""
