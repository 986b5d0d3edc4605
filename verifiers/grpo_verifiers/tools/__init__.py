"""Tools and environments: functions that the model calls while it answers, run apart from the trainer."""
