"""One reader of model text for all verifiers: thinking, tags, boxes, fences, stated answers. Pure functions."""
