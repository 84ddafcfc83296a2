"""Robust constrained MDPs: kernels, constraints, files, and the padded tables computed on."""
