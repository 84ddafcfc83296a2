"""Helpers that know nothing about Markov decision processes."""
