"""4-bit training: a quantised base that stays as it is, adapters in float32, and a planner for the card's memory."""
