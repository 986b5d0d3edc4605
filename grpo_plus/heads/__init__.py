"""A number read off the hidden states of a language model: the value of a state, or the reward of a text."""
