"""The page in a real browser, headless: on a phone's width and a wide screen, light and dark."""

import pytest

from gradwire.report import page
from scripts import browser
from tests.browser import Browser
from tests.report.samples import earlier, empty, hostile, saved

FOUND = browser.find()

pytestmark = pytest.mark.skipif(
    FOUND is None, reason="no browser: scripts/browser.py fetches one, or set GRADWIRE_BROWSER"
)

LOOK = """(() => {
  const figures = [...document.querySelectorAll('figure')].filter(e => !e.closest('details'));
  const box = e => e.getBoundingClientRect();
  const boxes = figures.map(box);
  const drawn = figures.filter(e => e.querySelector('.track, svg')).map(e =>
    [...e.querySelectorAll('.track, polyline')].filter(r => box(r).width > 0).length);
  const outside = figures.flatMap(e => [...e.querySelectorAll('span, i, svg')].filter(t => {
    const [a, b] = [box(t), box(e)];
    return a.width > 0 && (a.left < b.left - 1 || a.right > b.right + 1);
  })).map(t => t.outerHTML);
  const over = [...document.querySelectorAll('.chart li, .line')].filter(row => {
    const [a, b] = [...row.querySelectorAll('span')].map(box);
    return a.right > b.left && a.left < b.right && a.bottom > b.top && a.top < b.bottom;
  }).map(row => row.textContent);
  return {
    boxes: boxes.map(b => [b.width, b.height]), drawn, outside, over,
    wide: document.documentElement.scrollWidth,
    letters: getComputedStyle(document.querySelector('.label')).fontSize,
    text: getComputedStyle(document.body).color,
    back: getComputedStyle(document.body).backgroundColor,
    ran: window.ran === undefined && document.scripts.length === 0,
  };
})()"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    with Browser(FOUND) as started:

        def load(shown: str, width: int, *, dark: bool = False):
            path = folder / "page.html"
            path.write_text(shown, "utf-8")
            started.requests.clear()
            started.messages.clear()
            started.open(path, width, dark=dark)
            found = started.evaluate(LOOK)
            assert started.requests == [path.as_uri()], "it loads nothing but itself"
            assert started.messages == [], "nothing is logged"
            return found

        yield load


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize(
    "shown",
    [page([*earlier(), *saved()]), page([hostile()]), page([empty()])],
    ids=["ranks", "hostile", "empty"],
)
def test_every_chart_is_drawn_and_fits(opened, shown, width):
    found = opened(shown, width)
    assert found["wide"] <= width
    assert len(found["boxes"]) >= 3
    for chart_width, height in found["boxes"]:
        assert 0.2 * width < chart_width <= width
        assert height >= 38
    assert found["drawn"]
    assert all(found["drawn"])
    assert found["outside"] == [], "no text is cut off"
    assert found["over"] == [], "no label runs into its figure"
    assert found["letters"] == "12px", "charts are not scaled: text stays readable"
    assert found["ran"]


def test_it_follows_the_reader_s_light_or_dark_theme(opened):
    light, dark = (opened(page(saved()), 1400, dark=dark) for dark in (False, True))
    assert light["back"] != dark["back"]
    assert brightness(light["back"]) - brightness(light["text"]) > 150
    assert brightness(dark["text"]) - brightness(dark["back"]) > 150


def brightness(color: str) -> float:
    red, green, blue = (int(part) for part in color.removeprefix("rgb(").rstrip(")").split(","))
    return 0.3 * red + 0.6 * green + 0.1 * blue
