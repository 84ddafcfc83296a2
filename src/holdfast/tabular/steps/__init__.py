"""The steps of a policy update: improve, project, recover, safeguard, and gradient steps."""
