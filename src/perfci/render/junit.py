"""The report as JUnit XML, for the test views of GitHub, GitLab and Jenkins.

Format: the schema of the Jenkins xUnit plug-in (junit-10.xsd).
"""

from xml.etree import ElementTree as ET

from perfci.model.base import SIDES
from perfci.model.report import Report, Row
from perfci.model.text import shell
from perfci.render import words
from perfci.render.escape import xml
from perfci.render.view import View

_RUN = "perfci"


def render(report: Report) -> str:
    """Return a suite per device, a test per row, worst first, and one for the run in a suite `perfci`.

    A row that fails the run is a failure, or an error where the case failed; one without an answer is skipped; a
    warning, and what was proved, is a passed test with output.
    """
    view = View(report)
    root = ET.Element("testsuites", name=_RUN, time=f"{report.seconds:.3f}")
    run = ET.Element("testcase", classname=_RUN, name="verdict", time=f"{report.measuring_seconds:.3f}")
    sentence = " ".join(filter(None, (report.sentence, report.advice)))
    if report.verdict == "error":
        _child(run, "error", sentence, message=report.sentence, type="error")
        if report.advised:
            run[0].text = f"{run[0].text}\n{shell(report.advised)}"  # to be copied: its spaces stay as they are
    elif report.verdict == "fail" and not view.failing:
        _child(run, "failure", sentence, message=report.sentence, type="fail")
    elif report.verdict == "undecided":
        _child(run, "skipped", sentence, message=report.sentence)
    else:
        _child(run, "system-out", "\n".join([sentence, *view.remarks]))
    _suite(root, _RUN, [run], report)
    for kind in dict.fromkeys(row.device for row in report.rows):
        cases = [_case(view, row) for row in report.rows if row.device == kind]
        if cases:
            _suite(root, kind, cases, report)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(root: ET.Element, name: str, cases: list[ET.Element], report: Report) -> None:
    suite = ET.SubElement(root, "testsuite", name=name, timestamp=xml(report.started), tests=str(len(cases)))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(tag) is not None for case in cases)))
    properties = ET.SubElement(suite, "properties")
    facts = [("run", report.run), ("device", report.fingerprint.devices.get(name, ""))]
    facts += [
        (f"{side}.commit", report.sides[side].commit or report.sides[side].ref)
        for side in SIDES
        if side in report.sides
    ]
    for key, value in facts:
        if value:
            ET.SubElement(properties, "property", name=key, value=xml(value))
    suite.extend(cases)


def _case(view: View, row: Row) -> ET.Element:
    name = " ".join(filter(None, (row.case, row.metric, row.kind)))
    case = ET.Element("testcase", classname=xml(row.kernel), name=xml(name))
    if row.file:
        case.set("file", xml(row.file))
    message = f"{row.class_}: {words.because(row)}" if row.reason else row.class_
    compared = f"base {view.base(row)}, head {view.head(row)}, change {view.change(row)}, limit {view.limit(row)}"
    text = f"{message}\n{compared}" if row.metric else message
    if row.class_ == "skipped":
        _child(case, "skipped", "", message=row.reason or "skipped")
    elif row.effect == "fail":
        _child(case, "error" if row.class_ == "failed" else "failure", text, message=message, type=row.class_)
    elif row.effect == "undecided":
        _child(case, "skipped", text, message=" · ".join(filter(None, (message, words.help_page(row)))))
    elif row.effect != "pass" or row.proved:
        _child(case, "system-out", text)
    return case


def _child(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    child = ET.SubElement(parent, tag, {name: xml(value) for name, value in attributes.items()})
    if text:
        child.text = "\n".join(xml(line) for line in text.split("\n"))
