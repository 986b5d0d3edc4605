"""Many runs of one config: a grid of variants times seeds, one training run each, compared at the end."""
