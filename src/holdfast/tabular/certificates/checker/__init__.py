"""The checker of proof files: standard library and NumPy only, and nothing of the package outside it."""
