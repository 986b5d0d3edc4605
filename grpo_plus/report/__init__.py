"""Runs as one self-contained page: charts, and an inspector of the sampled groups."""
