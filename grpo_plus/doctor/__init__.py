"""What ``grpo-plus doctor`` looks at, and what it says of it: each finding is of a kind that docs/doctor.md lists."""
