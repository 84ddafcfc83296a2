"""Tasks on MuJoCo models."""
