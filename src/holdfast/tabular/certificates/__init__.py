"""Upper bounds, critical factors, and lower bounds on the change of one step."""
