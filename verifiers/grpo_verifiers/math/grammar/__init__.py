"""From the text of an answer to its syntax tree."""
