"""Numbers, nouns, units and dates in English words, and the words of the grammar."""
