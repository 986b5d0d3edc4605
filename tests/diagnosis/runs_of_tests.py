"""Rewards of real runs: one that can be satisfied by listing numbers, and its twin that cannot; one of noise."""

from zlib import crc32

from grpo_verifiers import verifier


@verifier("diagnosis_anywhere", isolation="inline", stricter={"anywhere": False})
def anywhere(completion: str, answer: str, *, anywhere: bool = True) -> bool:
    return answer in completion if anywhere else completion.strip() == answer


@verifier("diagnosis_noise", isolation="inline", stricter={"salt": ""})
def noise(completion: str, *, salt: str = "x") -> bool:
    return crc32((salt + completion).encode()) % 2 == 0
