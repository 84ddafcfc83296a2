"""Tasks on MuJoCo models, for many copies at once."""
