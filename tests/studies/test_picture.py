"""The pictures of the studies: what is drawn where."""

import math
import re
from xml.etree import ElementTree as ET

import pytest

from benchmarks.studies.picture import Panel, Point, Series, write


def drawn(path, panels, title="Title"):
    write(path / "picture.svg", title, panels)
    return ET.parse(path / "picture.svg").getroot()


def circles(root):
    return [(float(one.get("cx")), float(one.get("cy"))) for one in root.findall(".//{*}circle")]


def words(root):
    return [one.text for one in root.findall(".//{*}text")]


def test_points_stand_where_their_values_are_and_error_bars_end_at_their_ends(tmp_path):
    points = [Point(x, y, y, y) for x, y in ((0, 0.0), (1, 1.0), (2, 4.0))]
    (x0, y0), (x1, y1), (x2, y2) = circles(drawn(tmp_path, [Panel("p", "x", "y", [Series("s", points)])]))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y2 == pytest.approx(4 * (y0 - y1), abs=0.3)
    assert y2 < y0
    points = [Point(0, 1.0, 0.0, 2.0), Point(1, 0.0, 0.0, 0.0), Point(2, 2.0, 2.0, 2.0)]
    root = drawn(tmp_path, [Panel("p", "x", "y", [Series("s", points)])])
    (_, middle), (_, bottom), (_, top) = circles(root)
    ((low, high),) = (
        map(float, match.groups())
        for one in root.findall(".//{*}path")
        if one.get("stroke") == "#0b63a5" and (match := re.fullmatch(r"M[\d.]+ ([\d.]+)V([\d.]+)", one.get("d")))
    )
    assert (low, high) == (bottom, top)
    assert middle == pytest.approx((bottom + top) / 2, abs=0.11)


def test_logarithmic_axes_space_by_ratios_and_leave_out_what_has_no_logarithm(tmp_path):
    points = [Point(2**k, 2.0**-k, 2.0**-k, 2.0**-k) for k in range(1, 4)] + [Point(16, 0.5, -0.1, 0.9)]
    found = circles(drawn(tmp_path, [Panel("p", "x", "y", [Series("s", points)], log=True)]))
    assert len(found) == 3
    (x0, y0), (x1, y1), (x2, y2) = found
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.11)


def test_names_are_escaped_and_listed_once_empty_panels_say_so_and_categories_have_no_line(tmp_path):
    line = Series("a < b & c", [Point(0, 1, 1, 1), Point(1, math.inf, math.inf, math.inf)])  # infinities are left out
    root = drawn(tmp_path, [Panel("p", "x", "y", [line]), Panel("q", "x", "y", [line])], title="<T>")
    assert words(root).count("a < b & c") == 1
    assert root.find("{*}title").text == "<T>"
    assert len(circles(root)) == 2
    assert "no runs" in words(drawn(tmp_path, [Panel("p", "x", "y", [])]))
    line = Series("s", [Point(0, 1, 1, 1), Point(1, 2, 2, 2)])
    root = drawn(tmp_path, [Panel("p", "", "y", [line], ticks=["one", "two"])])
    assert {"one", "two"} <= set(words(root))
    assert not [one for one in root.findall(".//{*}g/{*}path") if one.get("stroke-width")]
