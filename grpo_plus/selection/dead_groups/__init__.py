"""Methods for groups whose every advantage is 0: pure functions, without a trainer."""
