"""Checks of ``grpo-plus doctor``; docs/doctor.md lists all kinds of findings."""
