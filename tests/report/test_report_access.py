"""The page for every reader: the contrast of all text, the keyboard, and a phone's width."""

import pytest

from grpo_plus.record.files import FINDINGS, FOLDER, append_line
from grpo_plus.report.write import write_report
from tests.report.test_report_browser import Page
from tests.report.test_report_findings import HACKED
from tests.report.test_report_turns import add_turns, turn

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.needs("chromedriver"), pytest.mark.slow]

CONTRAST = """
const pen = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d', { willReadFrequently: true });
const rgba = (text) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = text; pen.fillRect(0, 0, 1, 1); const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
const over = ([r, g, b, a], below) => [r, g, b].map((v, at) => v * a + below[at] * (1 - a));
const linear = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const luminance = (c) => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
function ground(e) {
  const layers = [];
  for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); layers.push(c); if (c[3] === 1) break; }
  return layers.reverse().reduce((below, c) => over(c, below), [255, 255, 255]);
}
function opacity(e) { let all = 1; for (; e; e = e.parentElement) all *= +getComputedStyle(e).opacity; return all; }
const found = [];
function judge(e, style, text, below) {
  const [r, g, b, a] = rgba(style.color), ink = over([r, g, b, a * opacity(e)], below);
  const [dark, light] = [luminance(ink), luminance(below)].sort((x, y) => x - y);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
  found.push([(light + .05) / (dark + .05), large ? 3 : 4.5, `${e.tagName}.${e.className} ${text.slice(0, 40)}`]);
}
for (const e of document.body.querySelectorAll('*')) {
  if (!e.checkVisibility({ contentVisibilityAuto: true }) || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)) continue;
  const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent).join('').trim();
  if (own || e.matches('input:not([type=range]), select')) judge(e, getComputedStyle(e), own || e.value || '', ground(e));
  for (const side of ['::before', '::after']) {
    const style = getComputedStyle(e, side), text = style.content;
    if (text !== 'none' && text !== 'normal' && text !== '""') judge(e, style, text, over(rgba(style.backgroundColor), ground(e)));
  }
}
return found;
"""
"""Contrast, least contrast and text of everything that is written; backgrounds that shine through are laid over each other."""


def everything(made_run, add_group):
    """A run whose page has all its sections and findings, all statuses, turns, values of a critic and shaded tokens."""
    run = made_run("whole", per_token=True, status="failed", error="ValueError: a word")
    statuses = ["correct", "partial", "wrong", "unparsable", "timeout", "error", "not_applicable"]
    answers = [("one two three four", status, "because") for status in statuses]
    values = [[0.1 * step for step in range(6)] for _ in answers]
    add_group(run, 10, "all statuses", answers, values=values)
    append_line(run / FOLDER / FINDINGS, HACKED)
    return add_turns(run, [turn(0, 3, "said"), turn(3, 6, "more", score=-0.5)])


def too_faint(page):
    """Everything with less contrast than it must have; nothing where something was read at all."""
    page.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    page.run("document.querySelectorAll('.completion, .panel').forEach((e) => e.scrollIntoView())")
    page.until("[...document.querySelectorAll('.completion .tokens')].every((e) => e.querySelector('.k'))")
    found = page.run(CONTRAST)
    assert len(found) > 40
    return sorted({(round(ratio, 2), least, what) for ratio, least, what in found if ratio < least})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_of_a_run_can_be_read(driver, made_run, add_group, scheme):
    page = Page(driver, write_report([everything(made_run, add_group)]))
    page.media(scheme)
    page.until(f"document.documentElement.dataset.theme === '{scheme}'")
    groups = page.run("return found().length")
    assert groups > 20
    for at in (groups - 1, groups - 2, 0):
        page.run(f"choose({at})")
        assert too_faint(page) == []
    if page.run("return !document.getElementById('colour').closest('.field').hidden"):
        page.run(f"choose({groups - 2})")
        page.choose("colour", "value")
        assert too_faint(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_of_a_comparison_can_be_read(driver, made_run, scheme):
    page = Page(driver, write_report([made_run("one"), made_run("two", status="interrupted")]))
    page.media(scheme)
    page.until(f"document.documentElement.dataset.theme === '{scheme}'")
    assert too_faint(page) == []


def test_the_canvas_of_a_chart_has_ink_of_the_same_contrast(driver, made_run):
    page = Page(driver, write_report([made_run()]))
    for scheme in ("light", "dark"):
        page.media(scheme)
        page.until(f"document.documentElement.dataset.theme === '{scheme}'")
        page.run("document.body.insertAdjacentHTML('beforeend', '<p class=\"panel axis-ink\">axis</p>')")
        page.run("document.querySelector('.axis-ink').style.color = css('--faint')")
        ratio = [ratio for ratio, _, what in page.run(CONTRAST) if "axis-ink" in what]
        assert ratio
        assert min(ratio) >= 4.5


def test_tab_reaches_every_control_in_order_and_shows_where_it_is(driver, made_run, add_group):
    page = Page(driver, write_report([everything(made_run, add_group)]))
    page.run("scrollTo(0, 0); document.activeElement.blur()")
    wanted = page.run(
        "const all = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility() && !e.disabled); all.forEach((e, at) => { e.dataset.at = at; }); return all.length"
    )
    assert wanted > 20
    page.run("document.body.tabIndex = -1; document.body.focus()")
    met = []
    for _ in range(wanted):
        page.driver.switch_to.active_element.send_keys("\ue004")
        at, outlined = page.run(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.dataset.at ?? e.outerHTML.slice(0, 90), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1]"
        )
        met.append(at)
        assert outlined, at
    assert met == [str(at) for at in range(wanted)]


@pytest.mark.parametrize("runs", [1, 12])
def test_nothing_scrolls_sideways_on_a_phone(driver, made_run, add_group, runs):
    folders = [everything(made_run, add_group), *(made_run(f"run-{at}") for at in range(1, runs))]
    page = Page(driver, write_report(folders))
    page.size(390, 844)
    page.until("innerWidth === 390")
    page.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= 390
    outside = page.run(
        "return [...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > 391 "
        "&& !e.closest('.table-scroll, .prompts, .plot, pre, .tokens, .prompt-text')).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
