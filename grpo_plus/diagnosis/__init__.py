"""Diagnosis in words: rules over the logged metrics of a run, each giving a finding with evidence, cause and remedy."""

from grpo_plus.diagnosis.catalogue import RULES, diagnose
from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import Finding, Rule

__all__ = ["RULES", "Curves", "Finding", "Rule", "diagnose"]
