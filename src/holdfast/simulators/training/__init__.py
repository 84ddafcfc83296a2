"""Training state, loop, checkpoints and run folders."""
