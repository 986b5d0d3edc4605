"""Checkpoints of a run, and a run that resumes: state, position in the data, fingerprint, agreement of the ranks."""
