"""Attacks on trained policies."""
