"""The page in a real browser: it draws, filters and searches, and nothing that a model wrote runs or hides."""

import re
import time

import pytest

from grpo_plus.record import mark_sweep
from grpo_plus.report.write import write_report
from tests.record.conftest import SETTINGS

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.needs("chromedriver")]

ATTACKS = [
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=1><svg onload=window.broken=1>",
    "<style>*{display:none}</style><a href='javascript:window.broken=1'>x</a>",
    "\u202egnp.exe\u2028\x00\x1b[2J\ud800 ${window.broken=1} {{1}}",
    "\U0001f9d1\u200d\U0001f680\ufdfd" * 200 + "a" + "\u0301" * 2000,
    "x" * 5000,
]
WAIT = 20


class Page:
    def __init__(self, driver, path):
        self.driver = driver
        driver.get_log("browser")
        self.media("light")
        self.size(1400, 1000)
        driver.get(path.as_uri())
        driver.execute_script("try { localStorage.clear(); } catch { }")
        self.until("document.querySelector('.completion, #inspector-body .empty')")
        self.opened_at = self.run("return window.scrollY")
        self.run("document.getElementById('inspector').scrollIntoView()")  # tokens are drawn where they are looked at
        self.until("document.querySelector('.completion .tokens .k, #inspector-body .empty')")

    def run(self, script):
        return self.driver.execute_script(script)

    def until(self, condition, seconds=WAIT):
        limit = time.monotonic() + seconds
        while not (found := self.run(f"return {condition}")):
            assert time.monotonic() < limit, f"{condition} did not become true; {self.count()}"
            time.sleep(0.02)
        return found

    def count(self):
        return self.run("return document.getElementById('inspector-count').textContent")

    def choose(self, control, value):
        self.run(
            f"const c = document.getElementById({control!r}); c.value = {value!r};"
            "c.dispatchEvent(new Event('input', {bubbles: true})); c.dispatchEvent(new Event('change', {bubbles: true}));"
        )

    def scheme(self):
        return self.run(
            "return [getComputedStyle(document.body).backgroundColor, document.querySelector('html').dataset.theme]"
        )

    def media(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture
def look(driver):
    return lambda path: Page(driver, path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model):
    """A real run of three steps with two verifiers and per-token advantages, and its report."""
    from datasets import Dataset

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    def letters(completions, **_):
        return [float(len(set(text))) for text in completions]

    def thirds(completion_ids, **_):
        return [[(0, len(ids) // 2, 1.0), (len(ids) // 2, len(ids), float(sum(ids) % 2))] for ids in completion_ids]

    settings = SETTINGS | {"max_steps": 3, "max_completion_length": 16, "report": None, "advantage": "process"}
    settings["verifiers"] = [{"name": "exact", "weight": 0.5}, "think_format"]
    config = GRPOPlusConfig(output_dir=str(tmp_path_factory.mktemp("trained") / "run"), **settings)
    rows = Dataset.from_dict({"prompt": ["1+1=", "2+2="] * 4, "answer": ["2", "4"] * 4})
    trainer = GRPOPlusTrainer(tiny_model, letters, config, rows, step_scorer=thirds)
    trainer.train()
    return trainer


@pytest.mark.slow
def test_a_real_run_draws_all_its_parts_without_an_error(look, trained, tmp_path):
    from pathlib import Path

    page = look(Path(trained.args.output_dir) / "report.html")
    titles = page.run("return [...document.querySelectorAll('.panel h3')].map((e) => e.textContent)")
    for title in ("Accuracy", "Verdicts of exact", "Advantages", "Groups that teach nothing", "Completion length"):
        assert title in titles
    page.run("document.querySelectorAll('.panel').forEach((e) => e.scrollIntoView())")
    page.until("document.querySelectorAll('.panel canvas').length === document.querySelectorAll('.panel').length")
    assert page.run(
        "return [...document.querySelectorAll('.panel canvas')].every((c) => {"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return d.some((v, i) => i % 4 === 3 && v > 0); })"
    )
    assert page.count() == "6 groups sampled"
    page.run("document.querySelectorAll('.completion').forEach((e) => e.scrollIntoView())")
    page.until("[...document.querySelectorAll('.completion .tokens')].every((e) => e.querySelector('.k'))")
    shown = page.run(
        "return [...document.querySelectorAll('.completion .tokens')].map((e) => [...e.querySelectorAll('.k')].map((k) => k.textContent).join(''))"
    )
    texts = [trained._logs["completion"][at] for at in range(8)]
    shown = [re.sub(r"<\|\w+\|>", "", text) for text in shown]  # special tokens, which texts are without
    assert len(shown) == 4
    assert all(any(plain.replace("\r", "") in text or not plain.isprintable() for plain in texts) for text in shown)
    assert page.run("return document.querySelectorAll('.completion .step').length") >= 4
    page.run("choose(found().findIndex((entry) => entry.live))")
    page.until("document.querySelector('.tokens .p4, .tokens .m4')")
    colours = page.run(
        "return [...new Set([...document.querySelectorAll('.tokens .k')].map((e) => getComputedStyle(e).backgroundColor))].length"
    )
    assert colours >= 2, "tokens differ in colour"
    assert page.run("return document.querySelectorAll('.bars .bar').length") == 4
    assert "process" in page.run("return document.getElementById('settings').textContent")
    assert page.errors() == []


@pytest.mark.slow
def test_filters_and_search_find_the_group(look, made_run, add_group):
    run = made_run(steps=12, groups=2)
    answers = [("a plain text", "timeout", ""), ("the NEEDLE is here", "error", "worker died")]
    add_group(run, 7, "where is the needle", answers)
    page = look(write_report([run]))
    assert page.count() == "25 groups sampled"
    page.choose("status", "timeout")
    page.until("document.getElementById('inspector-count').textContent === '1 group match'")
    assert page.run("return document.querySelector('.prompt-text').textContent") == "where is the needle"
    page.choose("status", "")
    page.choose("query", "needle is")
    page.until("document.getElementById('inspector-count').textContent === '1 group match'")
    page.until("document.querySelector('.tokens mark')")
    marked = page.run("return [...document.querySelectorAll('.tokens mark')].map((e) => e.textContent).join('')")
    assert "NEEDLE is" in marked
    page.choose("query", "WORKER died")
    page.until("document.querySelector('.verdicts mark')")
    page.choose("query", "nothing has this text")
    page.until("document.querySelector('#inspector .empty')")
    page.choose("query", "")
    page.until("document.getElementById('inspector-count').textContent === '25 groups sampled'")
    assert page.errors() == []


@pytest.mark.slow
def test_the_inspector_shows_what_the_record_holds(look, made_run, add_group):
    run = made_run(steps=3, groups=1)
    answers = [("bad", "wrong", "no"), ("good", "correct", "yes"), ("worse", "wrong", "")]
    add_group(run, 3, "pick", answers, names=("math", "length"))
    page = look(write_report([run]))
    page.until("document.querySelector('.prompt-text')?.textContent === 'pick'")
    bars = page.run(
        "return [...document.querySelectorAll('.bar')].map((e) => [e.querySelector('i').className, e.querySelector('.r').textContent, e.querySelector('.a').textContent])"
    )
    assert bars == [["down", "0.500", "−1.00"], ["up", "1.50", "+1.00"], ["down", "0.500", "−1.00"]]
    widths = page.run("return [...document.querySelectorAll('.bar i')].map((e) => parseFloat(e.style.width))")
    assert widths == pytest.approx([100 / 3, 200 / 3, 100 / 3], abs=0.01)
    page.choose("order", "reward")
    page.until("document.querySelector('.completion h4').textContent === '#2'")
    shown = page.run("return [...document.querySelectorAll('.completion .verdicts')].map((e) => e.textContent)")
    assert shown[0].startswith("correctmath 1.00yes")
    assert all(text.endswith("length 0.500") for text in shown)
    assert page.until("document.querySelector('.tokens .k')?.className") == "k p4"  # drawn once it is in sight


@pytest.mark.slow
def test_values_of_a_critic_are_drawn_read_by_keys_and_coloured_on_request(look, made_run, add_group, tmp_path):
    run = made_run(steps=1, groups=1)
    values = [[0.25, None, 0.75, 0.5], [0.0, 0.25, 0.5, 1.0]]
    add_group(run, 1, "pick", [("one two six.", "correct", ""), ("any old say!", "wrong", "")], values=values)
    page = look(write_report([run]))
    page.until("document.querySelector('.prompt-text')?.textContent === 'pick'")
    page.until("document.querySelector('#completion-0 .tokens .k')")
    assert page.run("return [...document.querySelectorAll('.values svg')].length") == 2
    # From the lowest, 0, at 95 to the highest, 1, at 5; the token without a value is a gap.
    path = page.run("return document.querySelector('#completion-0 .value-line').getAttribute('d')")
    assert path == "M0 72.50L0.5 72.50M2 27.50L2.5 27.50L3.5 50.00"
    assert page.run("return document.querySelector('#completion-0 .reward-line').getAttribute('d')") == "M0 5.00H4"
    assert "what the critic expected" in page.run("return document.querySelector('.aside').textContent")
    page.run("document.querySelector('#completion-0 .values input').focus()")
    page.driver.switch_to.active_element.send_keys("\ue012")  # the left arrow, which moves groups elsewhere
    page.until("document.querySelector('#completion-0 .values output').textContent.includes('value 0.750')")
    said = page.run("return document.querySelector('#completion-0 .values input').getAttribute('aria-valuetext')")
    assert said == 'token 3 "o s" · advantage +1.00 · value 0.750'
    assert page.run("return document.querySelector('#completion-0 .here').textContent") == "o s"
    assert page.run("return document.querySelector('.prompt-text').textContent") == "pick"
    page.choose("colour", "value")
    page.until("document.querySelector('#completion-1 .tokens .v5')")
    levels = page.run(
        "return [0, 1].map((n) => [...document.querySelectorAll(`#completion-${n} .tokens .k`)].map((e) => e.className))"
    )
    assert levels == [["k v2", "k ", "k v4", "k v3"], ["k v1", "k v2", "k v3", "k v5"]]
    page.run("choose(0)")
    page.until("document.querySelector('.prompt-text').textContent !== 'pick'")
    assert page.run("return document.querySelector('.values')") is None
    assert page.errors() == []
    page = look(write_report([made_run("without", steps=1)]))
    assert page.run("return document.getElementById('colour').closest('.field').hidden")


@pytest.mark.slow
def test_the_page_opens_at_its_top_and_the_row_of_prompts_follows_the_choice(look, made_run):
    page = look(write_report([made_run(steps=1, groups=30, resumed_from=4)]))
    assert page.opened_at == 0
    assert "10 min since it was resumed at step 4." in page.run("return document.getElementById('lede').textContent")
    page.run("choose(0)")
    page.until("document.querySelector('.prompts').scrollLeft < 5")
    page.run("choose(29)")
    page.until("document.querySelector('.prompts').scrollLeft > 500")


@pytest.mark.slow
def test_steps_are_reached_by_slider_keys_and_buttons(look, made_run):
    page = look(write_report([made_run(steps=5, groups=2)]))
    at = "[document.querySelector('.stepper output').textContent, [...document.querySelectorAll('.prompt-tab')].findIndex((e) => e.ariaPressed === 'true')].join(' ')"
    assert page.run(f"return {at}") == "step 5 1"
    page.run(
        "document.getElementById('inspector').scrollIntoView(); document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))"
    )
    page.until(f"{at} === 'step 5 0'")
    page.choose("step", "1")
    page.until(f"{at} === 'step 2 0'")
    page.run("document.querySelector('[aria-label=\"Next group\"]').click()")
    page.until(f"{at} === 'step 2 1'")
    page.run("document.dispatchEvent(new CustomEvent('pick-step', {detail: 4}))")
    page.until(f"{at} === 'step 4 0'")
    unnamed = page.run(
        "return [...document.querySelectorAll('button, select, input')].filter((e) => !e.hidden && !e.closest('[hidden]') &&"
        "!(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert unnamed == []
    plots = page.run("return [...document.querySelectorAll('.plot')].map((e) => [e.role, e.ariaLabel])")
    assert all(role == "img" and len(label) > 10 for role, label in plots)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["completion", "prompt", "reason", "verifier", "name"])
def test_hostile_text_stays_text(look, made_run, add_group, place):
    text = "".join(ATTACKS)
    settings = {}
    if place == "name":
        settings = {"error": text, "status": "failed", "model": {"name": text}, "config": {text: text}}
    run = made_run(steps=2, groups=1, **settings)
    given = {"prompt": "p", "answer": ("a", "wrong", "r"), "names": ("math",)}
    own = {"completion": {"answer": (text, "wrong", "r")}, "prompt": {"prompt": text}, "name": {}}
    own |= {"reason": {"answer": ("a", "wrong", text)}, "verifier": {"names": (text,), "answer": ("a", text, "r")}}
    given |= own[place]
    add_group(run, 2, given["prompt"], [given["answer"], ("b", "correct", "")], names=given["names"])
    out = write_report([run])
    source = out.read_text()
    assert source.count("<script") == 2
    assert "window.broken=1<" not in source
    page = look(out)
    assert page.run("return window.broken") is None
    assert page.run("return document.scripts.length") == 2
    foreign = "img, svg, iframe, object, main style, main a[href^=javascript]"
    assert page.run(f"return document.querySelectorAll({foreign!r}).length") == 0
    body = page.run("return document.body.textContent")
    assert "window.broken=1" in body, "shown, not swallowed"
    for character in "\u202e\u2028\x00\x1b":
        assert character not in body
    for width in (1400, 360):
        page.size(width, 900)
        assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.errors() == []


@pytest.mark.slow
def test_the_page_itself_forbids_scripts_that_are_not_its_own(look, made_run):
    page = look(write_report([made_run()]))
    page.run("const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)")
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken=1\">');")
    time.sleep(0.2)
    assert page.run("return window.broken") is None
    assert any("Content Security Policy" in message for message in page.errors())


@pytest.mark.slow
def test_light_and_dark_follow_the_system_until_one_is_chosen(look, made_run):
    page = look(write_report([made_run()]))
    light, theme = page.scheme()
    assert theme == "light"
    page.media("dark")
    page.until("document.documentElement.dataset.theme === 'dark'")
    dark, _ = page.scheme()
    assert dark != light
    page.run("document.getElementById('theme').click()")
    assert page.scheme() == [light, "light"]
    page.run("document.getElementById('theme').click()")
    page.media("light")
    assert page.scheme() == [dark, "dark"]
    assert page.errors() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768, 2400])
def test_no_width_scrolls_sideways(look, made_run, add_group, width):
    run = made_run(steps=6, per_token=True)
    add_group(run, 6, "w" * 3000, [("x" * 4000, "wrong", "r" * 400), ("y", "correct", "")])
    page = look(write_report([run]))
    page.size(width, 900)
    page.until(f"innerWidth === {width}")
    time.sleep(0.2)
    assert page.run("return document.documentElement.scrollWidth") <= width
    wide = page.run(
        f"return [...document.querySelectorAll('main > section > *, .panel, .completion, .aside, .controls')].filter((e) => e.getBoundingClientRect().right > {width} + 1).map((e) => e.className)"
    )
    assert wide == []


@pytest.mark.slow
def test_several_runs_are_compared(look, made_run):
    folders = [made_run(f"{variant}{seed}", seed=seed) for variant in ("sign", "rloo") for seed in (1, 2)]
    for folder in folders:
        mark_sweep(folder, folder.name[:-1], int(folder.name[-1]))
    folders.append(made_run("alone"))
    page = look(write_report(folders))
    rows = page.run("return [...document.querySelectorAll('tbody th')].map((e) => e.textContent)")
    assert rows == ["sign", "rloo", "alone"]
    assert " ± " in page.run("return document.querySelector('tbody td:nth-child(3)').textContent")
    assert page.run("return document.querySelector('.panel .legend').textContent").startswith("sign (n=2)")
    page.choose("run", "4")
    page.until("document.getElementById('inspector-count').textContent.startsWith('20 groups')")
    assert page.errors() == []


@pytest.mark.nightly
def test_two_thousand_steps_of_sixty_four_completions_stay_responsive(look, made_run):
    # The recorder samples at most 400 generation batches of a run, so every fifth here.
    run = made_run(steps=2000, every=5, groups=1, size=64, text="4+5=9\n9-3=6\n\\boxed{6}", per_token=True)
    out = write_report([run])
    assert out.stat().st_size < 12 * 2**20
    page = look(out)
    for step in ("0", "200", "380"):
        page.choose("step", step)
        shown = page.run("return document.querySelector('.stepper output').textContent")
        wanted = re.search(r"\d[\d,]*", shown)[0].replace(",", "")
        page.until(f"document.querySelector('.prompt-text').textContent === 'step {wanted} asks 0'")
        page.until("document.querySelectorAll('.completion').length === 64")
    page.choose("query", f"#{wanted}.0.63")
    page.until("document.getElementById('inspector-count').textContent.startsWith('1 group match')", 40)
    page.choose("smooth", "0.9")
    page.run("document.getElementById('theme').click()")
    assert page.errors() == []
