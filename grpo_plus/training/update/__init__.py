"""From a micro-batch to a gradient: objective, engine, critic, references, retry, a 4-bit base."""
