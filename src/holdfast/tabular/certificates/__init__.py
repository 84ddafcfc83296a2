"""Upper bounds, critical factors and bounds of a step."""
