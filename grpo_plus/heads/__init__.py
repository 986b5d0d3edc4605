"""Critics and reward models: one number for each hidden state of a language model."""
