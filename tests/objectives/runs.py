"""What the training runs of this folder have in common."""

import torch

from tests.device import FLOAT32

RUN = {**FLOAT32, "report_to": "none", "num_generations": 4, "per_device_train_batch_size": 4}
RUN |= {"max_completion_length": 6, "logging_steps": 1, "learning_rate": 1e-2, "lr_scheduler_type": "constant"}
RUN |= {"save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False}
SETTINGS = {**RUN, "gradient_accumulation_steps": 2, "max_steps": 2, "engine": "stock"}


def letters(completions, **_):
    """A reward that differs within most groups."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def logps_of(trainer, batch):
    """Log-probabilities of a micro-batch's completions under the weights as they are."""
    ids, mask = (torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], 1) for kind in ("ids", "mask"))
    width = batch["completion_ids"].size(1)
    return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, width)[0]


def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
