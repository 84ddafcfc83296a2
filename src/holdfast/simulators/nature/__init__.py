"""Disturbance kernels and adversaries."""
