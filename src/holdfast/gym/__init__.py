"""Gymnasium in both directions."""
