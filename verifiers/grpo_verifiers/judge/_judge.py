"""The judge: a rubric, a model, a score."""

import asyncio
import json
import os
import re
import time
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import show, without_middle
from grpo_verifiers.exec.loop import submit_http
from grpo_verifiers.judge._prompt import DEFAULT_RUBRIC, messages, transcript
from grpo_verifiers.judge._request import (
    Endpoint,
    JudgeConfigurationError,
    JudgeRefusalError,
    JudgeRequestError,
    ask,
    turns_for,
)
from grpo_verifiers.judge._score import read_score
from grpo_verifiers.options import IsPattern, Range, TagName
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import Status, Verdict, excused

# Capitals only: people paste the key itself here by mistake, and a key must not reach a message.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_LONG = 20_000
"""Characters of a reply from which on reading it would hold up the other requests."""
_GAP = "\n[… {} characters left out …]\n"
_OURS = ("max_tokens", "messages", "model", "n", "stream", "temperature")


def _option_problems(
    *,
    base_url: str,
    model: str,
    rubric: str,
    api_key_env: str | None,
    low: float,
    high: float,
    extra_body: Mapping[str, Any] | None,
    **_: Any,
) -> list[str]:
    problems = _url_problems(base_url)
    problems += [f"{name} is empty." for name, text in (("model", model), ("rubric", rubric)) if not text.strip()]
    if api_key_env is not None and not _VARIABLE.fullmatch(api_key_env):
        problems.append(
            "api_key_env must be the name of an environment variable in capitals (such as OPENAI_API_KEY), never the "
            "key itself; its value is not shown here in case it is one."
        )
    problems += [] if low < high else [f"low ({low:g}) must be below high ({high:g})."]
    return problems + _body_problems(extra_body or {})


def _url_problems(base_url: str) -> list[str]:
    try:
        parts = urllib.parse.urlsplit(base_url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, good = urllib.parse.urlsplit(""), False
    more = parts.username or parts.password or parts.query or parts.fragment
    if good and not more and base_url.isprintable() and not parts.path.rstrip("/").endswith("/completions"):
        return []
    expected = "expected the API's address before /chat/completions, without a user, password or query"
    return [f"base_url is {show(redact_text(base_url))}, {expected}, such as http://localhost:8000/v1."]


def _body_problems(body: Mapping[str, Any]) -> list[str]:
    own = [name for name in _OURS if name in body]
    problems = [
        f"extra_body sets {name!r}, which the judge sets itself or from its option of that name." for name in own
    ]
    try:
        json.dumps(body)
    except (TypeError, ValueError) as error:
        problems.append(f"extra_body is not JSON: {error}.")
    return problems


# It limits and retries its requests itself; a request in its queue must not count as late here.
@Traits(home="inline", timeout=3600.0, max_concurrency=4096, option_problems=_option_problems)
async def judge(
    completion: str,
    prompt: Any = None,
    answer: Any = None,
    *,
    base_url: str,
    model: str,
    rubric: str = DEFAULT_RUBRIC,
    api_key_env: str | None = None,
    low: Annotated[float, Range(finite=True)] = 0.0,
    high: Annotated[float, Range(finite=True)] = 10.0,
    score_pattern: Annotated[str, IsPattern(groups=1)] | None = None,
    temperature: Annotated[float, Range(0, finite=True)] | None = 0.0,
    max_tokens: Annotated[int, Range(1)] | None = 1024,
    extra_body: Mapping[str, Any] | None = None,
    concurrency: Annotated[int, Range(1, 1024)] = 16,
    request_timeout: Annotated[float, Range(0.01, 3600)] = 60.0,
    retries: Annotated[int, Range(0, 20)] = 4,
    backoff: Annotated[float, Range(0, 60)] = 1.0,
    give_up_after: Annotated[float, Range(0.01, 3000)] = 300.0,
    max_characters: Annotated[int, Range(2)] = 60_000,
    think: TagName | None = "think",
) -> Verdict:
    r"""Score the completion by the grade of a language model, from 0 (``low``) to 1 (``high``).

    The judged texts are sent as data between markers with a random code, each line after ``| ``. Look-alike markers
    are removed, and a space breaks up every possible control token of a chat template. That makes
    injection harder, not impossible: combine a judge with rules where you can.

    A reply without exactly one score in range is *unparsable*, a request that failed for good an *error*; both score
    None. A quoted score does not count. Rate limits, server errors and broken connections are tried again
    with growing, jittered pauses, never before the server's ``Retry-After``. A wrong key, address or model raises
    ``JudgeConfigurationError``.

    Use it when no rule can tell a good answer: style, helpfulness, open questions. Any server with the chat API of
    OpenAI will do (vLLM, Ollama).

    Scores: from 0 (wrong) to 1 (correct), partial between; 0 unparsable, where there is nothing to judge; None,
    unparsable, for a reply without a score; None, error, where the request failed for good.

    Config:
        verifiers:
          - name: judge
            base_url: http://localhost:8000/v1
            model: Qwen/Qwen2.5-7B-Instruct
            rubric: "How helpful is the answer, from 0 to 10?"

    Args:
        completion: the text to judge.
        prompt: the prompt of the completion, a text or a list of messages.
        answer: a reference answer, if the dataset has one.
        base_url: the API's address, ending before ``/chat/completions`` (``http://localhost:8000/v1``).
        model: the model's name there.
        rubric: the criteria; sent as the system message, before the rules about data and format.
        api_key_env: name of the environment variable that holds the key; None sends none.
        low: score of the worst answer.
        high: score of the best one.
        score_pattern: regular expression with one group that finds the score, for a rubric with its own output format
            (``\[\[(\d+)\]\]``); None requests a last line ``Score: x`` and reads that.
        temperature: None leaves it to the server.
        max_tokens: length of the judge's reply; None leaves it to the server.
        extra_body: further fields of the request.
        concurrency: requests at a time, over everything in this process that uses the endpoint with these bounds.
        request_timeout: seconds for one attempt.
        retries: attempts after the first.
        backoff: seconds before the first retry, doubled each time.
        give_up_after: seconds for everything: waiting for one's turn, attempts and pauses. Keep the verifier's own
            ``timeout`` above it, which counts as the completion's fault.
        max_characters: of each text; a longer one is cut in the middle, with a note.
        think: tag of the thinking section to hide from the judge; None shows everything.
    """
    endpoint = Endpoint(
        f"{base_url.rstrip('/')}/chat/completions", _key(api_key_env), float(request_timeout), retries, float(backoff)
    )
    response = answer_part(completion, think)
    if not response.strip():
        return Verdict(0.0, Status.UNPARSABLE, "nothing to judge outside the thinking")
    reference = "" if answer is None else str(answer)
    sections = {"TASK": transcript(prompt), "REFERENCE ANSWER": reference, "RESPONSE": response}
    sections = {title: without_middle(text, max_characters, _GAP) for title, text in sections.items() if text.strip()}
    body: dict[str, Any] = {"model": model, "stream": False, **(extra_body or {})}
    body |= {} if temperature is None else {"temperature": temperature}
    body |= {} if max_tokens is None else {"max_tokens": max_tokens}
    until = time.monotonic() + give_up_after

    async def work() -> Verdict:
        chat = messages(rubric, low, high, sections, ask_for_score=score_pattern is None)
        try:
            async with turns_for(endpoint.url, concurrency):
                reply = await ask(endpoint, {**body, "messages": chat}, until)
        except JudgeRequestError as error:
            return excused(f"the judge failed: {error}"[:400])
        try:
            arguments = reply, low, high, score_pattern
            score = await asyncio.to_thread(read_score, *arguments) if len(reply) > _LONG else read_score(*arguments)
        except ValueError as error:
            raise JudgeRefusalError(f"{error}"[:400]) from error
        return Verdict(score, detail=show(reply[-300:], 300))

    try:
        return await asyncio.wait_for(asyncio.wrap_future(submit_http(work())), give_up_after)
    except TimeoutError:
        return excused(f"the judge failed: no verdict after {give_up_after:g} s")


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise JudgeConfigurationError(
            f"judge: the environment variable {variable}, which api_key_env names, is not set: export it first."
        )
    if not key.isascii() or not key.isprintable():
        raise JudgeConfigurationError(f"judge: the environment variable {variable} holds characters that no key has.")
    return key
