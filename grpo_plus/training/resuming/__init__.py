"""Checkpoint contents beyond the host's: data position, generation batch, and the fingerprint of the run."""
