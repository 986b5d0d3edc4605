"""Dead groups stay in the batch, as in TRL: they add nothing to the gradient and count in its mean.

Use it when few groups are dead, or when only the estimator may decide the content of a batch.

Degenerate case: all groups are dead, and the step changes nothing but a KL term.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Keep:
    """Keywords of `keep`: none."""
