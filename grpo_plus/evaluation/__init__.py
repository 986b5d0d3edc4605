"""The accuracy of a model on a dataset: pass@1, pass@k and the majority with intervals, judged by verifiers."""
