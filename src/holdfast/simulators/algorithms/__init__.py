"""The algorithms of `train`, one file each; `holdfast.registry` lists them by name."""
