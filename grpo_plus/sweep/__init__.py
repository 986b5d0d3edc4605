"""Many runs of one config: a grid of variants times seeds, each a training run of its own, compared at the end."""
