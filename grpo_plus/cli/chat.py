"""``grpo-plus chat``: talk to a model, with the prompt, adapter and sampling that its run was trained with."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._early import say
from grpo_plus.cli._parser import Parser
from grpo_plus.cli._tool_use import add_tool_options, code_in, tool_use
from grpo_plus.cli._trained import places
from grpo_plus.cli._verifiers import add_verifier_options, make_verifiers
from grpo_plus.cli.eval import (
    add_draw_options,
    add_loading_options,
    add_prompt_options,
    as_trained,
    base_and_adapter,
    load_model,
)
from grpo_verifiers.errors import ConfigError, VerifierError

if TYPE_CHECKING:
    from grpo_plus.cli._talk import Talk
    from grpo_plus.cli._trained import Trained
    from grpo_verifiers import Verifier

PROG = "grpo-plus chat"
COMMANDS = "/new begins another conversation, /gold TEXT says what is right of the next answer, /quit leaves."


def run(arguments: Sequence[str]) -> int:
    """Answer every line, until the input ends or somebody leaves."""
    options = _options(arguments)
    base, adapter = base_and_adapter(options, PROG)
    found = as_trained(options)
    options.load_in_4bit = options.load_in_4bit or found.four_bit
    from grpo_plus.cli._prompts import prompt_problems
    from grpo_verifiers.exec.runner import close_shared_runners

    if problems := prompt_problems(options.prompt):
        raise UserError(" ".join(problems))
    try:
        judges = make_verifiers(options) if options.verifier else _of_run(found, options)
        say("Loading torch and transformers.")
        from transformers.utils import logging

        from grpo_plus.cli._talk import Talk

        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        tools = tool_use(options, places(options.adapter, options.model))
        model, tokenizer = load_model(base, adapter, options)
        with Talk.begun(model, tokenizer, options, tools) as talk:
            return _listen(talk, options, judges)
    except (ConfigError, VerifierError, ValueError) as error:
        raise UserError(str(error)) from error
    except BrokenPipeError:  # whoever reads has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        close_shared_runners()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog=PROG,
        usage=f"{PROG} RUN [options]",
        description="Talk to a model: the output_dir of a run, a checkpoint, any folder or a name on the hub. Prompt, "
        "sampling and 4 bits are those of the run.",
        epilog=f"Every line is a turn, from a terminal or a pipe. {COMMANDS}",
    )
    parser.add_argument("model", help="a run, a folder or a name on the hub")
    parser.add_argument("--once", metavar="TEXT", help="answer this, and end")
    asked = parser.add_argument_group("prompt; unset, as in the run")
    add_prompt_options(asked, columns=False)
    judge = parser.add_argument_group("verdicts; unset, by the verifiers of the run where there is a gold answer")
    judge.add_argument("--gold", metavar="TEXT", help="the right answer of what is asked first, for the verifiers")
    add_verifier_options(judge)
    add_tool_options(parser.add_argument_group("tools; unset, those of the run"))
    draws = parser.add_argument_group("sampling")
    add_draw_options(draws)
    add_loading_options(parser.add_argument_group("loading"))
    options: argparse.Namespace = parser.parse_args(list(arguments))
    if options.once is not None and not options.once.strip():
        raise UserError("--once is empty, expected what to ask.")
    if options.column:
        raise UserError("--column names a column of a dataset, and a chat has none: --gold gives the right answer.")
    return options


def _of_run(run: "Trained", options: argparse.Namespace) -> "list[Verifier]":
    """The verifiers that rewarded the run, which judge once a gold answer is given; none where they are gone."""
    code = code_in({"verifiers": run.verifiers, "plugins": run.plugins})
    if code and not options.trust_run:
        say(
            f"The record of the run names code for its verifiers: {', '.join(code)}. It is not run unasked, so there "
            "are no verdicts: give --trust-run, or --verifier."
        )
        return []
    options.plugin = [*run.plugins, *options.plugin]
    try:
        return make_verifiers(options, run.verifiers)
    except (ConfigError, VerifierError) as error:
        say(f"The verifiers of the run cannot be made, so there are no verdicts: {error}")
        return []


def _listen(talk: "Talk", options: argparse.Namespace, judges: "Sequence[Verifier]") -> int:
    gold: str | None = options.gold
    if gold is not None and not judges:
        raise UserError("--gold is for a verifier, and there is none: give --verifier.")
    terminal = options.once is None and sys.stdin.isatty()
    if terminal:
        say(COMMANDS)
    for line in [options.once] if options.once is not None else _lines(terminal=terminal):
        word, _, rest = _checked(line).strip().partition(" ")
        if word == "/quit":
            break
        if word == "/new":
            talk.anew()
        elif word == "/gold":
            gold = rest.strip() or None
            if not judges:
                say("There is no verifier to give it to: begin with --verifier.")
        elif word:
            try:
                answered = talk.turn(line.rstrip("\n"))
            except KeyboardInterrupt:
                if not terminal:
                    raise
                print()  # the answer ends here, and the conversation goes on
                continue
            for verdict in talk.verdicts(judges, gold, asked=bool(options.verifier)) if answered else ():
                print(verdict, flush=True)
            gold = None
    return 0


def _lines(*, terminal: bool) -> Iterator[str]:
    """What is typed or piped; ends with the input, and with Ctrl-C at a terminal."""
    while True:
        try:
            yield input("> ") if terminal else _piped()
        except EOFError:
            if terminal:
                print()
            return
        except KeyboardInterrupt:
            if not terminal:
                raise
            print()
            return
        except UnicodeDecodeError as error:
            raise UserError(f"the input is no text in {sys.stdin.encoding}: {error}.") from error


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes that are no text come in as lone surrogates
        raise UserError(f"the input is no text in UTF-8: {text[:80]!a}.") from error
    return text


def _piped() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
