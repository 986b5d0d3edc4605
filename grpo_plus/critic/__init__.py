"""A critic: its options, its loss, and what it is measured by."""
