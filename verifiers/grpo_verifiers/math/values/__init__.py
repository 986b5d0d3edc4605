"""The value of a tree: exact forms, floating point, many digits; and the work a tree leaves undone."""
