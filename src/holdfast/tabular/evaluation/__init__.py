"""Values, occupancies and advantages of a policy, and its worst case over the set."""
