"""The device that tests train on, from ``GRPO_PLUS_DEVICE``: ``cpu``, ``cuda``, or ``stand-in`` for a card that is not there."""

import os

NAME = os.environ.get("GRPO_PLUS_DEVICE", "cpu")
if NAME not in {"cpu", "cuda", "stand-in"}:
    raise ValueError(f"GRPO_PLUS_DEVICE is {NAME!r}, expected cpu, cuda or stand-in.")
ON_CPU = NAME == "cpu"
DEVICE = "cpu" if ON_CPU else "cuda"
"""As torch calls it."""
FLOAT32 = {"use_cpu": ON_CPU, "bf16": False}
"""Training arguments: on that device, in float32."""
