"""What runs inside the box. Standard library only: the box sees this folder and no other package."""
