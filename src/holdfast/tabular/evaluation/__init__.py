"""Values, occupancies and worst cases of a policy."""
