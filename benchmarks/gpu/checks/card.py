"""The card itself: speed of products and copies, and the rounding of float32, bfloat16 and NF4."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu import probe
from benchmarks.gpu.check import GIB, Context

ERRORS = {"float32": 2e-6, "bfloat16": 4e-3}
"""Relative errors of a product. TF32, which may not be used unasked, has 3e-4."""


def run(context: Context) -> None:
    """Facts, then products."""
    facts = probe.card()
    context.report(**facts)
    rates = {}
    for name in ("float32", "bfloat16"):
        dtype, size = getattr(torch, name), 64 if context.tiny else 8192
        left, right = (torch.randn(size, size, device=context.device, dtype=dtype) for _ in range(2))
        error = _error(left[:64] @ right, left[:64].double() @ right.double())
        context.report(**{f"error_{name}": error})
        context.expect(error < ERRORS[name], f"a {name} product is off by {error:.1e}, expected {ERRORS[name]:g}")
        rates[name] = 2 * size**3 / _seconds(context, lambda left=left, right=right: left @ right) / 1e12  # type: ignore[misc]
        context.report(**{f"tflops_{name}": rates[name]})
    block = torch.empty(1 << (10 if context.tiny else 30), dtype=torch.uint8, device=context.device)
    copied = 2 * block.numel() / _seconds(context, block.clone) / 1e12
    context.report(copy_tb_s=copied)
    if context.cuda:
        free, total = torch.cuda.mem_get_info()
        context.report(outside=(total - free - torch.cuda.memory_reserved()) / GIB)
    worst = max(_nf4(context, dtype, rows) for dtype in ("float32", "bfloat16") for rows in (1, 4, 64))
    memory = f"{facts['total']:.0f} GiB, capability {facts['capability']}, " if facts else ""
    context.headline(
        f"{memory}{rates['bfloat16']:.3g} TFLOP/s in bf16, {rates['float32']:.3g} in float32, {copied:.2g} TB/s, "
        f"NF4 off by {worst:.0%} of what it may"
    )


def _nf4(context: Context, kind: str, rows: int) -> float:
    """The largest error of a 4-bit layer's product or gradient, as a part of what is allowed."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit, Params4bit

    dtype, (outputs, inputs) = getattr(torch, kind), (64, 128) if context.tiny else (4096, 2048)
    layer = Linear4bit(inputs, outputs, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta")
    weight = 0.02 * torch.randn(outputs, inputs, device=context.device, dtype=dtype)
    layer.weight = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=layer)
    layer = layer.to(context.device)
    plain = dequantize_4bit(layer.weight.data, layer.weight.quant_state).reshape(outputs, inputs)
    rounded = _error(plain, weight.double())
    given = torch.randn(rows, inputs, device=context.device, dtype=dtype, requires_grad=True)
    pull = torch.randn(rows, outputs, device=context.device, dtype=dtype)
    found = layer(given)
    found.backward(pull)
    assert given.grad is not None
    errors = [
        _error(found.detach(), given.detach().double() @ plain.double().T),
        _error(given.grad, pull.double() @ plain.double()),
    ]
    allowed = {"float32": 1e-5, "bfloat16": 1e-2}[kind]
    context.report(**{f"nf4_{kind}_{rows}": max(errors), "nf4_rounding": rounded})
    context.expect(max(errors) < allowed, f"NF4 in {kind}, {rows} rows: off by {max(errors):.1e}, expected {allowed:g}")
    context.expect(0.02 < rounded < 0.2, f"NF4 rounds weights by {rounded:.1%}, expected about 9%")
    return max(errors) / allowed


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def _seconds(context: Context, work: Callable[[], Any], times: int = 10) -> float:
    """Mean seconds of some work, after it ran three times."""
    for _ in range(3):
        work()
    if context.cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        work()
    if context.cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times
