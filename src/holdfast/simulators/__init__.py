"""Simulators: policies trained by deep reinforcement learning against learned worst-case kernels."""
