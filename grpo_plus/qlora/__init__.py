"""Training on a quantised base: checks, defaults, float32 adapters, and export."""
