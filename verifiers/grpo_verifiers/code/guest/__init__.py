"""The guest's side of a conversation: runs in the box, in the program's process. Standard library only.

The box mounts this folder and ``sandbox/inside``, and no other package. The parent imports it too, to encode and
decode values.
"""
