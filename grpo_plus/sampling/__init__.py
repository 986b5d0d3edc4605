"""Draw completions: prefill once, compact finished rows, sample, or hand adapters to vLLM."""
