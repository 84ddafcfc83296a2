"""Attacks on trained policies, upper bounds by proof, and their results."""
