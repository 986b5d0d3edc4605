"""The seam to TRL."""
