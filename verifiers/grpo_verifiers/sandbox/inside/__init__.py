"""Confinement by the kernel, for boxes and for workers. Standard library only: the box sees no other package."""
