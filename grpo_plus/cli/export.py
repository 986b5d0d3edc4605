"""``grpo-plus export``: write a run's adapter, or the model with the adapter merged, for other programs."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_plus.record import runs_near


def run(arguments: Sequence[str]) -> int:
    """Write the adapter or the merged model."""
    options = _parser().parse_args(list(arguments))
    flags = {"--base": options.base, "--dtype": options.dtype}
    adapter_only = [flag for flag, value in flags.items() if value]
    if adapter_only and not options.merge:
        raise UserError(f"{', '.join(adapter_only)} only matters with --merge: add it, or leave the rest out.")
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise UserError(f"{options.out} exists and is not an empty folder: name another with --out.")
    if not options.run.expanduser().is_dir():
        problem = "is a file and no folder" if options.run.exists() else "is no folder: it does not exist"
        hint = f"{runs_near(options.run)} Give the output_dir of a run, or one of its checkpoints."
        raise UserError(f"the run {options.run} {problem}.{hint}")
    import torch

    from grpo_plus.qlora import export

    dtype = getattr(torch, options.dtype or "bfloat16")
    try:
        adapter = export.find_adapter(options.run)
        if not options.merge:
            export.copy_adapter(adapter, options.out)
            print(f"The adapter of {adapter} is in {options.out}.")
            print("transformers: PeftModel.from_pretrained(base, folder), or AutoPeftModelForCausalLM on the folder.")
            print(f"vLLM: vllm serve BASE --enable-lora --lora-modules trained={options.out}")
            print(f"GGUF and Ollama need merged models: grpo-plus export {options.run} --merge --out NEW_FOLDER")
            return 0
        base = export.base_of(adapter, options.base)
        export.merge(adapter, base, options.out, dtype=dtype)
        print(f"{adapter} merged onto {base} in {options.dtype or 'bfloat16'}: {options.out}")
    except export.ExportError as error:
        raise UserError(str(error)) from error
    print(f"vLLM: vllm serve {shlex.quote(str(options.out))}, and vllm chat to talk to it")
    print("GGUF and Ollama: llama.cpp's convert_hf_to_gguf.py takes this folder (not run here).")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="grpo-plus export", description=__doc__)
    parser.add_argument("run", type=Path, help="output_dir of a run, or one of its checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--merge", action="store_true", help="merge the adapter into the base, loaded in 16 bits")
    parser.add_argument("--base", help="the 16-bit base; default: the base named by the adapter")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="of the merged model (bfloat16)")
    return parser
