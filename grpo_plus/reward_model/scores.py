"""The token that the score of a sequence is read at.

``AutoModelForSequenceClassification`` reads at the last token that is not the padding token, wherever the padding is:
a completion that itself ends with that token is read before it. Whatever says how a model was trained must read there
too. Rows of tokens with a mask of their own are read at the last token of the mask instead.
"""

import torch
from torch import Tensor


def last_unpadded(ids_BT: Tensor, pad_token_id: int) -> Tensor:
    """The position, (B,), of each row's last token that is not ``pad_token_id``; 0 in a row of padding.

    >>> last_unpadded(torch.tensor([[5, 6, 0], [0, 7, 8], [0, 0, 0]]), 0)
    tensor([1, 2, 0])
    """
    return last_of(ids_BT != pad_token_id)


def last_of(mask_BT: Tensor) -> Tensor:
    """The position, (B,), of each row's last true token; 0 where there is none.

    >>> last_of(torch.tensor([[True, True, False], [False, False, False]]))
    tensor([1, 0])
    """
    places_T = torch.arange(mask_BT.shape[-1], device=mask_BT.device)
    return (places_T * mask_BT.to(places_T.dtype)).argmax(dim=-1)
