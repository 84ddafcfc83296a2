"""Robust constrained MDPs as tables: evaluation, steps, algorithms, certificates, all exact."""
