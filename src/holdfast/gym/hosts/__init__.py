"""Hosts: objects outside JAX that step many copies of an environment at once."""
