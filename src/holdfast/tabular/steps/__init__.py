"""Policy steps: improve, project, both at once, recover."""
