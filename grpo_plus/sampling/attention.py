"""The kernels that attention may run on, on a card."""

import torch

from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


def leave_out_cudnn(device: torch.device) -> None:
    """Keep PyTorch's attention off the kernels of cuDNN, for the whole process.

    PyTorch 2.11 and later prefer them on a Hopper or Blackwell card. With a mask, as padded and packed rows have it,
    their gradient is NaN for some models and lengths (pytorch/pytorch#196678), and each new length costs a plan.
    """
    if device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
        logger.info("Attention runs without cuDNN's kernels, whose gradient with a mask may be NaN.")
