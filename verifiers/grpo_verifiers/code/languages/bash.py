"""Bash, with the programs of ``/usr/bin``."""

from grpo_verifiers.code.languages import Language

LANGUAGE = Language(
    names=("bash", "sh", "shell"),
    file="main.sh",
    commands=(("/bin/bash", "main.sh"), ("/usr/bin/bash", "main.sh")),
    piston="bash",
)
