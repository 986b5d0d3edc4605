"""Studies: each one command, one table, one picture, several seeds. docs/studies.md says what they ask and found.

``study.py`` runs them, ``task.py`` has the task and the training that they share, ``numbers.py`` the statistics,
``picture.py`` the drawing.
"""
