"""Networks, agents and exports."""
