"""``grpo-plus completion``: print a script that completes the commands of grpo-plus in bash, zsh or fish."""

import sys
from collections.abc import Sequence

from grpo_plus.cli._completing import candidates
from grpo_plus.cli._parser import Parser

PROG = "grpo-plus completion"

# Each asks `grpo-plus completion --words WORD ...`, whose last word is the one being typed; no answer: files.
# Bash splits words at colons, so it is given the line, and an answer loses what stands before its last colon.
SCRIPTS = {
    "bash": """\
_grpo_plus() {
  local line=${COMP_LINE:0:COMP_POINT} words current
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  current=${words[-1]}
  mapfile -t COMPREPLY < <("${words[0]/#\\~/$HOME}" completion --words "${words[@]:1}" 2>/dev/null)
  [[ $current == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}")
}
complete -o default -F _grpo_plus grpo-plus
""",
    "zsh": """\
#compdef grpo-plus
_grpo_plus() {
  local -a answers
  answers=("${(@f)$(${~words[1]} completion --words "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${answers[1]}" ]]; then compadd -- "${answers[@]}"; else _files; fi
}
compdef _grpo_plus grpo-plus
""",
    "fish": """\
function __grpo_plus
  set -l words (commandline -opc) (commandline -ct)
  set -l answers ($words[1] completion --words $words[2..-1] 2>/dev/null)
  if test (count $answers) -gt 0
    printf '%s\\n' $answers
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c grpo-plus -f -a '(__grpo_plus)'
""",
}
INSTALL = {
    "bash": 'eval "$(grpo-plus completion bash)", for good in ~/.bashrc',
    "zsh": 'eval "$(grpo-plus completion zsh)", for good in ~/.zshrc, after compinit',
    "fish": "grpo-plus completion fish | source, for good in ~/.config/fish/config.fish",
}


def run(arguments: Sequence[str]) -> int:
    """Print the script of a shell, or the words that may stand at the end of a line."""
    if arguments and arguments[0] == "--words":  # by the scripts: any word may follow, options too
        sys.stdout.writelines(f"{word}\n" for word in candidates(arguments[1:] or [""]))
        return 0
    ways = "; ".join(f"{shell}: {way}" for shell, way in INSTALL.items())
    parser = Parser(prog=PROG, description=f"{__doc__} {ways}.")
    parser.add_argument("shell", choices=SCRIPTS, help="the shell to complete in")
    sys.stdout.write(SCRIPTS[parser.parse_args(list(arguments)).shell])
    return 0
