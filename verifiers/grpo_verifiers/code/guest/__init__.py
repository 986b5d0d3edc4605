"""The guest's side of a conversation: runs in the box, beside the program. Standard library only.

The box mounts this folder and ``sandbox/inside``, and no other package. The parent imports it too, for the form that
values have on the way.
"""
