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
    "restore": "a resumed run, before TRL loads the checkpoint",
    "begin": "its place in the data",
}
BLOCK = re.compile(r"(<!-- flow -->\n```\n)(.*?)(```\n)", re.DOTALL)
Lines = list[str]


def flow() -> str:
    """The calls of stages in order, with the room of each stage; what a call receives and runs is indented below it."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Pipeline"]
    methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
    reader = Reader(_stages(tree, methods["__init__"]))
    lines: Lines = []
    for name, title in METHODS.items():
        reader.local = {}
        lines += [f"{name}, {title}", *(f"  {line}" for line in reader.block(methods[name].body)), ""]
    return "\n".join(lines)


def _stages(tree: ast.Module, init: ast.FunctionDef) -> dict[str, str]:
    """The room of each stage, by its attribute."""
    rooms = {
        alias.name: node.module.split(".")[2]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_plus.training.")
        for alias in node.names
    }
    stages = {"saving": "resume"}
    for node in ast.walk(init):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.attr for target in targets for each in ast.walk(target) if isinstance(each, ast.Attribute)]
            made = [rooms[each.id] for each in ast.walk(node.value) if isinstance(each, ast.Name) and each.id in rooms]
            stages |= {name: made[0] for name in names if made}
    return stages


class Reader:
    """Reads statements; ``local`` has the lines of a method's own functions, which run where they are called."""

    def __init__(self, stages: dict[str, str]) -> None:
        self.stages = stages
        self.local: dict[str, Lines] = {}

    def block(self, body: list[ast.stmt]) -> Lines:
        """The lines of statements."""
        lines: Lines = []
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.local[node.name] = self.block(node.body)
            elif isinstance(node, ast.With):
                for item in node.items:
                    lines += [f"with {line}" for line in self.calls(item.context_expr)]
                lines += self.block(node.body)
            elif isinstance(node, ast.If | ast.For):
                lines += self.calls(node.test if isinstance(node, ast.If) else node.iter)
                lines += [*self.block(node.body), *self.block(node.orelse)]
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                received = self.received(node.value)
                if received and isinstance(target, ast.Name):
                    self.local[target.id] = received
                else:
                    lines += self.calls(node.value)
            else:
                lines += self.calls(node)
        return lines

    def calls(self, node: ast.AST) -> Lines:
        """The lines of an expression as it runs."""
        if not isinstance(node, ast.Call):
            return [line for child in ast.iter_child_nodes(node) for line in self.calls(child)]
        given = [*node.args, *(word.value for word in node.keywords)]
        passed = [each for each in given if not isinstance(each, ast.Attribute)]  # an attribute is a value
        before = [line for each in (node.func, *given) if not self.received(each) for line in self.calls(each)]
        inside = [f"  {line}" for each in passed for line in self.received(each)]
        own = self.received(node.func)
        return [*before, *own, *(inside if own else [line.removeprefix("  ") for line in inside])]

    def received(self, node: ast.AST) -> Lines:
        """The lines of a function that is passed on; empty for any other value."""
        if isinstance(node, ast.Lambda):
            return self.calls(node.body)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "partial":
            outer, *given = map(self.received, node.args)
            return [*outer, *(f"  {line}" for each in given for line in each)]
        parts = ast.unparse(node).split(".") if isinstance(node, ast.Name | ast.Attribute) else [""]
        if parts[0] in self.local:
            return self.local[parts[0]]
        if parts == ["trl"]:
            return ["trl"]
        if parts[0] == "hook":
            return [f"hooks: {parts[-1]}"]
        if len(parts) == 3 and parts[1] in self.stages:
            return [f"{self.stages[parts[1]]}: {parts[1]}.{parts[2]}"]
        if parts == ["self", "sample_and_score"]:
            return ["sample_and_score"]
        return []


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda found: f"{found[1]}{flow()}{found[3]}", text), encoding="utf-8")
