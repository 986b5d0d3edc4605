"""Writes the flow of a run into architecture.md, from the source of the pipeline: `python docs/pictures/flow.py`."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "grpo_plus" / "training" / "pipeline.py"
METHODS = {
    "make_batch": "a generation batch",
    "sample_and_score": "a round of it",
    "sample": "sampling",
    "score": "rewards",
    "micro_batch": "the next micro-batch",
    "step": "its step",
    "loss": "its loss",
    "logps": "log-probabilities",
    "save": "a checkpoint",
    "restore": "a resumed run",
}
BLOCK = re.compile(r"(<!-- flow -->\n```\n)(.*?)(```\n)", re.DOTALL)


def flow() -> str:
    """The calls of stages, in the order of each method's lines, with the room of each stage."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    rooms = {
        alias.name: node.module.split(".")[2]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_plus.training.")
        for alias in node.names
    }
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Pipeline"]
    methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
    stages: dict[str, str] = {}
    for node in ast.walk(methods["__init__"]):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.attr for target in targets for each in ast.walk(target) if isinstance(each, ast.Attribute)]
            made = [rooms[each.id] for each in ast.walk(node.value) if isinstance(each, ast.Name) and each.id in rooms]
            stages |= {name: made[0] for name in names if made}
    stages["saving"] = "resume"
    lines = []
    for name, title in METHODS.items():
        contexts = {
            id(item.context_expr)
            for node in ast.walk(methods[name])
            if isinstance(node, ast.With)
            for item in node.items
        }
        calls = []
        for node in ast.walk(methods[name]):
            if not isinstance(node, ast.Call):
                continue
            parts = ast.unparse(node.func).split(".")
            text = ""
            if parts[0] == "trl" or ast.unparse(node).startswith("partial(trl"):
                text = "trl"
            elif parts[0] == "hook" or ast.unparse(node).startswith("partial(hook"):
                text = f"hooks: {ast.unparse(node.args[0]).split('.')[-1] if parts[0] == 'partial' else parts[-1]}"
            elif len(parts) == 3 and parts[1] in stages:
                text = f"{stages[parts[1]]}: {parts[1]}.{parts[2]}"
            if text:
                calls.append((node.end_lineno, node.end_col_offset, f"with {text}" if id(node) in contexts else text))
        lines += [f"{name}, {title}", *(f"  {call}" for _, _, call in sorted(calls)), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda found: f"{found[1]}{flow()}{found[3]}", text), encoding="utf-8")
