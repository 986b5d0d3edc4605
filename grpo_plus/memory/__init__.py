"""Memory that runs out: what is run again in smaller parts, and what a run says where it must end."""
