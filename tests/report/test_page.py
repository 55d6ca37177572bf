"""The page of a report: complete, escaped, and in need of nothing."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gradwire.report import Report, page
from gradwire.report.markup import Markup, element, join
from tests.report.samples import empty, hostile, saved

SVG = "{http://www.w3.org/2000/svg}"


def tree(shown: str) -> ET.Element:
    """Parse a page as XML, which takes no mistake."""
    return ET.fromstring(shown.removeprefix("<!DOCTYPE html>\n"))


def figure(shown: str, title: str) -> ET.Element:
    """Return the one figure of this title."""
    (found,) = [each for each in tree(shown).iter("figure") if each.findtext("h3") == title]
    return found


def rows(chart: ET.Element) -> list[tuple[str, str, dict[str, tuple[float, float]]]]:
    """Return the rows of a chart: label, figure, and where each piece begins and how long it is."""
    found = []
    for row in chart.iter("li"):
        if (label := row.find("span")) is None:
            continue  # of a legend
        pieces = {}
        for piece in row.iter("i"):
            place = re.fullmatch(r"left:([0-9.]+)%;width:([0-9.]+)%", str(piece.get("style")))
            assert place is not None
            pieces[str(piece.get("class"))] = (float(place[1]), float(place[2]))
        found.append((str(label.text), str(row.findall("span")[1].text), pieces))
    return found


class Elements(HTMLParser):
    """What a browser would find: tags and attributes."""

    def __init__(self, shown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(shown)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


PAGES = {
    "one": page(saved()[:1]),
    "two ranks": page(saved()),
    "hostile": page([hostile()]),
    "empty": page([empty()]),
}


@pytest.mark.parametrize("shown", PAGES.values(), ids=PAGES.keys())
def test_a_page_is_well_formed_and_loads_nothing(shown):
    found = Elements(shown)
    assert "script" not in found.tags
    assert not {"img", "iframe", "object", "embed", "form", "base"} & set(found.tags)
    assert [value for name, value in found.attributes if name in ("href", "src")] == ["data:,"]
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "url(" not in shown
    assert "@import" not in shown
    policy = [value for _, value in found.attributes if value and "default-src" in value]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert tree(shown).find("body/main") is not None


@pytest.mark.parametrize("shown", PAGES.values(), ids=PAGES.keys())
def test_every_chart_says_what_it_is(shown):
    figures = list(tree(shown).iter("figure"))
    assert len(figures) >= 3
    for each in figures:
        assert each.findtext("h3")
        assert each.findtext("figcaption")
    for label, value, pieces in rows(tree(shown)):
        assert label
        assert value
        assert pieces


def test_texts_of_any_origin_are_shown_and_not_run():
    shown = PAGES["hostile"]
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert "\x00" not in shown
    shown.encode("utf-8")  # no half of a surrogate pair
    cells = {each.text for each in tree(shown).iter("td")}
    assert {each for each in cells if each and each.startswith("<script>alert(1)</script>\"'&]]>")}


def test_the_figures_are_in_the_tables():
    report = saved()[0]
    cells = [each.text for each in tree(PAGES["one"]).iter("td")]
    for each in report.parameters:
        assert each.name in cells
        assert f"{each.numel:,}" in cells
    assert "all" in cells


def test_the_share_of_uncompressed_parameters_is_shown():
    report = saved()[0]
    sent = sum(each.bytes_per_step for each in report.parameters)
    dense = [each.bytes_per_step for each in report.parameters if each.dense]
    assert 0.0 < sum(dense) < sent
    count, total = len(dense), len(report.parameters)
    text = f"  uncompressed    {sum(dense) / sent:.0%} of these, for {count} of {total} parameters"
    assert text in str(report).splitlines()
    assert f"of these bytes, for {count} parameters" in PAGES["one"]
    assert "0% of these, for 0 of 0 parameters" in str(empty())


def test_bars_are_as_long_as_their_figures():
    report = saved()[0]
    found = rows(figure(PAGES["one"], "Bytes on the wire"))
    numel = sum(each.numel for each in report.parameters)
    expected = [report.wire_bytes, 2.0 * numel, 4.0 * numel]  # two ranks: a ring sends it once
    lengths = [length for *_, pieces in found for begin, length in pieces.values() if begin == 0]
    assert lengths == pytest.approx([100 * each / expected[2] for each in expected], abs=0.001)


def test_bars_of_a_table_are_as_long_as_their_figures():
    report = saved()[0]
    most = max(each.compression for each in report.parameters)
    by_name = {each.name: each for each in report.parameters}
    for row in figure(PAGES["one"], "All parameters").findall(".//tbody/tr"):
        each = by_name[str(row[0].text)]
        part = float(str(row[3].get("style")).removeprefix("--part:").removesuffix("%"))
        assert part == pytest.approx(100 * each.compression / most, abs=0.001)
        assert (row[8].get("style") is None) == (each.residual_norm is None)


def test_with_a_hierarchy_the_bytes_inside_the_node_are_shown():
    shown = replace(saved()[0], node_wire_bytes=2.5e6, node_ms=1.5).to_html()
    found = [row[:2] for row in rows(figure(shown, "Bytes on the wire"))]
    assert ("inside the node, dense", "2.5 MB, 1.5 ms") in found
    assert "inside the node" not in PAGES["one"]


def test_a_notebook_shows_the_figures_in_its_own_colours():
    report = saved()[0]
    shown = report._repr_html_()
    cells = [each.text for each in tree(shown).iter("td")]
    assert f"{report.compression:.1f}×" in cells
    assert report.largest(1)[0].name in cells
    assert cells.count("dense") + sum(each.name in cells for each in report.parameters) >= 10
    assert "The 10 largest of" in shown
    assert not re.search(r"color|background|#[0-9a-f]{3}|@media|url\(", shown)
    assert set(re.findall(r"^(\S+) .*{", str(tree(shown).findtext("style")), re.MULTILINE)) == {
        ".gradwire-report"
    }


@pytest.mark.parametrize("report", [hostile(), empty()], ids=["hostile", "empty"])
def test_a_cell_of_a_notebook_is_well_formed_and_runs_nothing(report):
    shown = report._repr_html_()
    assert tree(shown).tag == "div"
    assert {"script", "link", "meta", "img"}.isdisjoint(Elements(shown).tags)
    assert not [name for name, _ in Elements(shown).attributes if name.startswith("on")]
    assert "\u202e" not in shown
    shown.encode("utf-8")


def test_pieces_of_a_timeline_lie_where_their_times_do():
    report = saved()[0]
    at = max(each.step for each in report.timeline)
    last = [each for each in report.timeline if each.step == at]
    found = rows(figure(PAGES["one"], "The last steps"))[: len(last)]
    whole = max(each.decode[1] for each in last)
    ready = max(each.ready for each in last)
    for (label, _, pieces), each in zip(found, last, strict=True):
        assert label.startswith(f"bucket {each.bucket}: ")
        first, end = each.exchange
        places = {
            "exchange": (100 * first / whole, 100 * (end - first) / whole),
            "ready": (100 * each.ready / whole, 0.0),
            "pass": (0.0, 100 * ready / whole),
        }
        for kind, place in places.items():
            assert pieces[kind] == pytest.approx(place, abs=0.001)


def test_what_overlapped_is_what_lay_within_the_backward_pass():
    first = saved()[0].timeline[0]
    early = replace(first, bucket=0, ready=0.0, exchange=(1.0, 3.0))
    late = replace(first, bucket=1, ready=2.0, exchange=(4.0, 9.0))
    shown = replace(saved()[0], timeline=(late, early)).to_html()
    (value, pieces) = {
        label: (value, pieces) for label, value, pieces in rows(figure(shown, "What overlapped"))
    }["exchange"]
    assert value == "14% of 7 ms"  # 1 ms of 7
    assert pieces["after"][1] == pytest.approx(6 * pieces["within"][1], abs=0.01)


def test_of_each_rank_the_last_report_is_shown_in_the_order_of_ranks():
    first, second = saved()
    older = replace(first, steps=3)
    shown = page([second, older, first])
    assert "2 ranks of 2" in shown
    assert "Of 3 reports, only the latest of each rank is shown." in shown
    assert shown.index("Rank 0") < shown.index("Rank 1")
    table = figure(shown, "All ranks").findall(".//tbody/tr")
    assert [[row[0].text, row[1].text] for row in table] == [["0", "20"], ["1", "20"]]
    assert page([second, older, first]).count("3 steps") == 0


def test_figures_of_several_steps_are_drawn_over_time():
    first, second = saved()
    before = replace(first, step=10, residual_norm=1.0, achieved=None)
    between = replace(first, step=20, residual_norm=5.0)
    assert "Over time" not in page([first, second])
    assert "Over time" not in page([first, first])
    shown = page([between, first, before, second])
    titles = [each.text for each in tree(shown).iter("h3") if "over time" in str(each.text)]
    assert len(titles) == 4
    (line,) = figure(shown, "Residual norm over time").iter(f"{SVG}polyline")
    points = [tuple(map(float, each.split(","))) for each in str(line.get("points")).split()]
    most = first.residual_norm
    assert most is not None
    expected = [(0.0, 1.0), (50.0, 5.0), (100.0, most)]  # steps 10, 20 and 30
    for (x, y), (across, value) in zip(points, expected, strict=True):
        assert (x, y) == (across, pytest.approx(100 * (1 - value / most), abs=0.001))
    (title,) = figure(shown, "Residual norm over time").iter(f"{SVG}title")
    assert str(title.text).startswith("step 10: 1; step 20: 5; step 30: ")
    (line,) = figure(shown, "Achieved over time").iter(f"{SVG}polyline")
    assert len(str(line.get("points")).split()) == 2, "a report without the figure is left out"


def test_without_a_report_there_is_no_page():
    with pytest.raises(ValueError, match="no report to show"):
        page([])


def test_very_many_parameters_and_buckets_are_cut_and_it_is_said():
    first = saved()[0]
    many = tuple(replace(first.parameters[0], name=f"layer{i}") for i in range(3000))
    buckets = tuple(replace(first.timeline[0], bucket=i) for i in range(100))
    shown = replace(first, parameters=many, timeline=buckets).to_html()
    assert "The 2000 largest parameters" in shown
    assert "and 52 more buckets" in shown
    assert len(shown) < 3_000_000


def test_a_page_is_the_same_for_the_same_report(tmp_path):
    report = saved()[0]
    report.write_html(tmp_path / "page.html")
    written = (tmp_path / "page.html").read_text("utf-8")
    assert written == report.to_html() == Report.from_json(report.to_json()).to_html()


def test_markup_is_escaped_once():
    assert join("a<b") == "a&lt;b"
    assert join(join("a<b"), None) == "a&lt;b"
    assert element("p", "<", Markup("<br/>"), title='"') == '<p title="&quot;">&lt;<br/></p>'
    assert element("meta", name="a", class_=None) == '<meta name="a"/>'
