"""The quickstart on a card, from the YAML to the report."""

import time

from benchmarks.gpu.check import Context
from benchmarks.gpu.checks.command import ROOT, train

GAIN = 0.2
"""Least gain of accuracy on held-out questions; on a CPU it is 0.47."""


def run(context: Context, *, four_bit: bool = False) -> None:
    """Warm start, measure, train, measure, report."""
    from grpo_plus.record.reader import read_measured

    arguments = ["--use_cpu", "false", "--load_in_4bit", str(four_bit).lower(), "--output_dir", "out"]
    if context.tiny:
        arguments += ["--max_steps", "2", "--warm_start.steps", "4", "--per_device_train_batch_size", "16"]
        arguments += ["--measure.n", "1"]
    begun = time.monotonic()
    train(context, context.folder, ROOT / "examples" / "quickstart.yaml", arguments)
    seconds = time.monotonic() - begun
    context.report(whole_s=seconds)
    context.expect((context.folder / "out" / "report.html").is_file(), "there is no report")
    found = read_measured(context.folder / "out")["math"]
    if found.before is None or found.after is None:
        context.expect(holds=False, otherwise="accuracy was not measured before and after")
        return
    before, after = found.before.value, found.after.value
    context.report(before=before, after=after)
    context.expect(context.tiny or after - before > GAIN, f"accuracy went from {before:.1%} to {after:.1%}")
    context.headline(f"held-out accuracy {before:.1%} → {after:.1%} in {seconds:.0f} s, warm start included")
