"""Reports from JSON: what was written comes back, and nothing else is taken."""

import json
import math

import pytest

from gradwire.report import Report, read
from tests.report.samples import SAVED, hostile, saved

WRITTEN = json.loads(saved()[0].to_json())


def changed(**fields: object) -> str:
    return json.dumps({**WRITTEN, **fields})


def in_first(rows: str, **fields: object) -> str:
    first, *others = WRITTEN[rows]
    return changed(**{rows: [{**first, **fields}, *others]})


def test_a_report_of_version_1_is_read_as_it_was_written():
    first, second = saved()
    assert (first.rank, second.rank, first.world_size) == (0, 1, 2)
    assert first.parameters[0].name == "module.embed.weight" or first.parameters[0].numel > 0
    assert len(first.timeline) == 4 * 5
    assert json.loads(first.to_json()) == json.loads(SAVED.read_text())[0]


@pytest.mark.parametrize("report", [saved()[0], hostile()], ids=["saved", "hostile"])
def test_what_is_written_comes_back(report):
    again = Report.from_json(report.to_json())
    assert again == report
    assert isinstance(again, Report)


def test_several_reports_are_read_from_a_list_or_one_after_another():
    first, second = saved()
    for text in (
        f"[{first.to_json()}, {second.to_json()}]",
        f"{first.to_json()}\n{second.to_json()}\n",
        f"\ufeff  {first.to_json()}{second.to_json()}",
    ):
        assert read(text) == [first, second]
    with pytest.raises(ValueError, match="2 reports, not one"):
        Report.from_json(first.to_json() + second.to_json())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no report in it"),
        ("[]", "there is no report in it"),
        ("{", "not JSON: Expecting property name.* in line 1"),
        ("step 3, loss 0.5", "not JSON"),
        ("null", "a report is a JSON object, not null"),
        ("[[1]]", "a report is a JSON object, not a list"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "it has no 'gradwire_report'. Write it again with handle.report"),
        (changed(gradwire_report=2), "the report has version 2, but this gradwire reads version 1"),
        (changed(gradwire_report=True), "the report has version True"),
        (changed(rank="0"), "rank is '0', not a count"),
        (changed(rank=True), "rank is True, not a count"),
        (changed(rank=2), "rank 2 of 2 ranks"),
        (changed(steps=-1), "steps is -1, not a count"),
        (changed(steps=2**63), "steps is 9223372036854775808, not a count"),
        (changed(wire_bytes=math.nan), "NaN is not a number"),
        (changed(wire_bytes=math.inf), "Infinity is not a number"),
        (changed().replace(f'"wire_bytes": {WRITTEN["wire_bytes"]}', '"wire_bytes": 1e999'), "inf"),
        (changed(codec=None), "codec is None, not a string"),
        (changed(achieved="all"), "achieved is 'all', not a number"),
        (changed(parameters={}), "parameters is an object, not a list"),
        (changed(parameters=[1]), r"parameters\[0\] is a number, not an object"),
        (in_first("parameters", dense=0), r"parameters\[0\].dense is 0, not true or false"),
        (in_first("parameters", numel=1.5), r"parameters\[0\].numel is 1.5, not a count"),
        (in_first("timeline", encode=[1]), r"timeline\[0\].encode is \[1\], not a beginning"),
        (in_first("timeline", encode=[2, 1]), r"timeline\[0\].encode ends before it begins"),
        (changed(slots=1), "has an unknown 'slots'"),
        ('{"gradwire_report": 1}', "the report lacks 'achieved'"),
        ('{"gradwire_report": ' + "9" * 5000 + "}", "."),
        (saved()[0].to_json() + changed(rank=7), "report 2: rank 7 of 2 ranks"),
    ],
)
def test_anything_else_is_an_error_that_says_what_is_wrong(text, said):
    with pytest.raises(ValueError, match=said) as caught:
        read(text)
    assert len(str(caught.value)) < 300
