"""Tools and environments: functions that the model calls during a completion, run outside the trainer."""
