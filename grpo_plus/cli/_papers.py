"""The recipes by paper that ``grpo-plus init paper:NAME`` writes, in one line each."""

from collections.abc import Mapping

PREFIX = "paper:"
PAPERS: Mapping[str, str] = {
    "deepseekmath": "DeepSeekMath: GRPO as it was first written down",
    "dapo": "DAPO: higher upper clip, mean over tokens, groups without contrast drawn again",
    "dr_grpo": "Dr. GRPO: no division by the deviation or by the length of an answer",
    "gspo": "GSPO: the ratio and the clip of a whole sequence",
    "cispo": "CISPO: the weight of a token is capped, its gradient never cut",
    "rloo": "RLOO: REINFORCE with the mean of the other answers as the baseline",
    "opo": "OPO: the baseline of least variance, exactly on-policy",
    "maxrl": "MaxRL: hard prompts count more, towards maximum likelihood",
    "reinforce_pp": "REINFORCE++: returns standardised over the tokens of the batch, without groups",
    "gpg": "GPG: plain policy gradient, scaled up for groups without contrast",
    "gdpo": "GDPO: several rewards, each standardised by itself",
    "passk": "Pass@k: the best of k attempts is what counts",
    "gmpo": "GMPO: the geometric mean of clipped token ratios",
    "sapo": "SAPO: a smooth gate in place of the clip",
    "vespo": "VESPO: a smooth weight on the ratio of a whole sequence",
    "luspo": "LUSPO: GSPO without its preference for short answers",
    "dppo": "DPPO: a trust region of probabilities in place of ratios",
    "up": "UP: good answers are pulled without a bound",
    "tpo": "TPO: a target distribution over the group",
    "real": "REAL: rewards are labels, a group is classified",
    "fipo": "FIPO: tokens weighed by what the policy makes of their future",
    "best_of_n": "RAFT, rejection sampling: the best answers are imitated",
    "gigpo": "GiGPO: turns that began in the same state are compared, in a game",
    "mt_grpo": "MT-GRPO: a turn's own reward, against the same turn of the group, in a game",
    "ppo": "PPO: one completion a prompt, and a critic in place of the group",
    "sao": "SAO: the same with a faster critic, lambda by length, and far tokens left out",
}
"""What each file ``papers/NAME.yaml`` of the recipes is about."""
BESIDE: Mapping[str, tuple[str, ...]] = {"gigpo": ("game.py",), "mt_grpo": ("game.py",)}
"""Files that a recipe needs, in the folder above its own."""
