"""The sandbox workshop: boxes, confinement, resource limits and their cleanup."""
