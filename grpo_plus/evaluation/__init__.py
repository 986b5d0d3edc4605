"""The accuracy of a model on a dataset: pass@1, pass@k and majority@k with intervals, judged by verifiers."""
