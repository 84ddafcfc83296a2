"""Environments that live outside JAX: what steps them, and how a disturbance reaches them."""
