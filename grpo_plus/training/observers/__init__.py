"""Stages that only read: clock, recorder, prompt statistics, diagnosis; and callbacks."""
