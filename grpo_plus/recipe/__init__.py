"""The frozen recipe of a run: options, paths, parts and every problem of a config."""
