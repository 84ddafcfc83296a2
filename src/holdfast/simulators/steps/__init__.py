"""The local model of an update and its line search."""
