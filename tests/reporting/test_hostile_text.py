"""Text of others stays text on the page: nothing in a run folder becomes an element or runs."""

import csv
import io
import json
import tarfile
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import open_page
from fabricated_recordings import make_store
from fabricated_runs import add_recording, make_run
from stores import rehash

pytest.importorskip("altair", reason='the report needs pip install -e ".[report]"')

from brt.report import expanded, local_folders, report
from brt.reporting import archive
from brt.reporting.drawing.heat_map import HeatMap
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Column, Table
from brt.reporting.page import HERE
from brt.reporting.runs import open_runs
from brt.storage.csv_text import csv_text

HOSTILE = (
    "</script><script>document.title = 'PWNED'</script>",
    "<img src=x onerror=\"document.title = 'PWNED'\">",
    '"><svg onload="document.title = \'PWNED\'">',
    "' onmouseover='document.title = 1' x='",
    "<!--<script>document.title = 'PWNED'",
    "</style><script>document.title = 'PWNED'</script>",
    "</title><script>document.title = 'PWNED'</script>",
    "javascript:document.title='PWNED'",
    "$\\frac{</text><script>document.title = 'PWNED'</script>$",
)
IN_A_NAME = "<img src=x onerror=document.title='PWNED'>\" onload='a"
"""Markup that is valid in the name of a folder."""


def study(text):
    """A study with the text in every field that is a text."""
    series = {"name": text, "x": [0, 1], "y": [1, 2], "x_label": text, "y_label": text}
    excerpt = dict.fromkeys(
        ("before", "text", "after", "title", "kind", "where", "direction"), text
    )
    return {
        **dict.fromkeys(("study", "run", "other", "verdict", "split"), text),
        "numbers": {text: 1.5},
        "series": [series, series | {"y_label": f"documents {text}"}],
        "excerpts": [excerpt | {"nats": 1.0, "last_seen": 3, "rank": 0}],
        "texts": [{"title": text, "parts": [[text, True], [text, False]]}],
        "table": [{text: text, "run": f"2 ±{text}", "r0.1": 1.0}],
    }


def maps(text):
    drawn = dict.fromkeys(("title", "caption", "x_label", "y_label"), text)
    drawn |= {"array": "m", "x_ends": [0, 2], "y_ends": [0, 1], "x_borders": [], "y_borders": []}
    return {"study": "attention", "arrays": "maps.npz", "maps": [drawn], "verdict": text}


@pytest.fixture(scope="module")
def page(folder):
    """The report of two runs of which every text is hostile."""
    texts = [f"{text} the tea\n" * 3 for text in HOSTILE]
    store = make_store(folder / f"store {IN_A_NAME}" / "validation", texts)
    (path,) = store.folder.rglob("documents.jsonl")
    lines = path.read_text().splitlines()
    titled = [json.loads(line) | {"title": HOSTILE[n]} for n, line in enumerate(lines)]
    path.write_text("".join(json.dumps(t) + "\n" for t in titled))
    rehash(store.folder)
    evaluation = dict(loss=1.0, cleared_loss=1.2, bits_per_token=1.4, bits_per_character=2.0)
    evaluation |= {"given": list(HOSTILE), "caveat": HOSTILE[1]}
    runs = []
    for name in (f"run {IN_A_NAME}", "other"):
        run = make_run(
            folder / name,
            "small/rec_fixed_skip+corpora/text",
            f"TextFiles.suffix = {HOSTILE[len(runs)]!r}",
            f"Corpus.store = {HOSTILE[2 + len(runs)]!r}",
            evaluations={"test": evaluation, IN_A_NAME: evaluation},
            records=[{"step": s, "train/loss": 1.0, "train/bits_per_token": 2.0} for s in (1, 2)],
        )
        (run / "studies").mkdir()
        for number, text in enumerate((" ".join(HOSTILE[:4]), " ".join(HOSTILE[4:]))):
            (run / "studies" / f"s{number} {IN_A_NAME}.json").write_text(json.dumps(study(text)))
        (run / "studies" / "attention.json").write_text(json.dumps(maps(HOSTILE[0])))
        np.savez(run / "studies" / "maps.npz", m=np.arange(6.0).reshape(2, 3))
        add_recording(run, store, "kept", np.full(store.num_tokens, 0.5, np.float32))
        (run / "studies" / f"torn {IN_A_NAME}.json").write_text("{")
        runs.append(run)
    report(open_runs(runs), folder / "report.html")
    return folder / "report.html"


class Elements(HTMLParser):
    """Elements and attributes of a page, and what its scripts hold."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self._inside = [], [], False
        self.text = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, text):
        if self._inside:
            self.scripts[-1] += text
        self.text.append(text)


HARMLESS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "nav", "a", "button"),
    *("ul", "ol", "li", "section", "h2", "h3", "p", "div", "span", "strong", "code", "label"),
    *("table", "thead", "tbody", "tr", "th", "td", "sup", "details", "summary", "figure"),
    *("figcaption", "blockquote", "mark", "select", "input", "canvas", "script", "i"),
}


def test_no_text_becomes_an_element_an_attribute_or_a_script(page):
    text = page.read_text(encoding="utf-8")
    found = Elements(text)
    assert {tag for tag, _ in found.elements} <= HARMLESS
    for tag, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("href", "src", "xlink:href", "action", "style"):
            value = attributes.get(name) or ""
            assert "javascript:" not in value and "PWNED" not in value
    *data, _, own, reader = found.scripts
    assert own.strip() == (HERE / "page.js").read_text(encoding="utf-8").strip()
    assert reader.strip() == (HERE / "reader.js").read_text(encoding="utf-8").strip()
    assert len(data) > 1 and all(json.loads(text) and "<" not in text for text in data)


def test_the_hostile_text_is_shown_as_it_is(page):
    shown = "".join(Elements(page.read_text(encoding="utf-8")).text)
    for text in HOSTILE[:8]:
        assert text in shown


def test_in_a_browser_nothing_of_it_runs(page, tmp_path):
    touch = (
        "<script>for (const e of document.querySelectorAll('*')) for (const n of ['mouseover',"
        "'mousemove', 'click', 'load', 'error']) e.dispatchEvent(new Event(n));</script>"
    )
    text = page.read_text(encoding="utf-8")
    copy = tmp_path / "page.html"
    copy.write_text(text.replace("</body>", f"{touch}</body>"))
    dom = open_page(f"file://{copy}", tmp_path / "opened")
    assert "<title>PWNED</title>" not in dom and "<title>1</title>" not in dom
    assert 'id="reading"' in dom and 'data-i="0"' in dom  # the page's own scripts have run
    assert "<svg" in dom
    copy.write_text(text.replace("&lt;", "<").replace("&gt;", ">"))
    assert "<title>PWNED</title>" in open_page(f"file://{copy}", tmp_path / "unescaped")


FORMULAS = ("=HYPERLINK(1)", "+cmd|x", "-cmd|x", "@SUM(1)", "\t=1", " =1", "\r=1", "\uff1d1")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_spreadsheet_takes_no_text_for_a_formula(text):
    for content in (
        Table("t", "", "", [Column("", text)], [[Cell(text)], [Cell(text, (1.0,))]]).as_csv(),
        Plot("p", "", "", text, text, [Line(text, [1], [2])]).as_csv(),
        HeatMap("h", "", "", text, text, np.ones((1, 1)), (0,), (0,)).as_csv(),
    ):
        lines = csv.reader(io.StringIO(content, newline=""))
        cells = [cell for line in lines for cell in line if cell]
        assert not [cell for cell in cells if cell.strip()[0] in "=+-@\uff1d"]
        assert any(cell.startswith("'") for cell in cells)


def test_numbers_of_a_csv_stay_numbers():
    values = ["-0.5", "+1e-3", "-0.5 ± 0.1", "-1.5 -2.0", "-inf", "–", "2.0 or more", "12,288"]
    assert list(csv.reader([csv_text([values])])) == [values]
    assert csv_text([[-1.5, 2, None]]) == "-1.5,2,\n"


# Archives.


def packed(path, *members):
    """An archive of empty members, each a name or a `tarfile.TarInfo`."""
    with tarfile.open(path, "w:bz2", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            tar.addfile(tarfile.TarInfo(member) if isinstance(member, str) else member)
    return path


@pytest.mark.parametrize("name", ["...tar.bz2", "run.tar"])
def test_an_archive_whose_name_names_no_folder_is_refused(tmp_path, name):
    scratch = tmp_path / "above" / "scratch"
    with pytest.raises(ValueError, match=name):
        archive.unpack(packed(tmp_path / name, "planted"), scratch)
    assert not list(tmp_path.rglob("planted"))


def test_archives_of_one_name_are_told_apart_by_their_folders(tmp_path):
    paths = []
    (tmp_path / "c").mkdir()
    for parent in ("a", "b"):
        run = make_run(tmp_path / parent / "run", "small/rec_fixed_skip+corpora/text")
        archive.pack(run, tmp_path / parent / "run.tar.bz2")
        paths.append(f"{tmp_path}/c/../{parent}/run.tar.bz2")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    runs = open_runs(local_folders(paths, str(scratch)))
    assert [run.name for run in runs] == ["a/run", "b/run"]
    assert all(scratch in run.folder.resolve().parents for run in runs)
    with pytest.raises(ValueError, match=r"a/run\.tar\.bz2 is named twice"):
        expanded([paths[0], paths[1], paths[0]])


def member(name, **fields):
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


@pytest.mark.parametrize(
    "planted",
    [
        member("config.gin", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("config.gin", type=tarfile.FIFOTYPE),
        "../planted",
    ],
)
def test_an_archive_gives_files_and_folders_of_its_own_only(tmp_path, planted):
    path = packed(tmp_path / "run.tar.bz2", planted)
    with pytest.raises(ValueError, match=r"run\.tar\.bz2"):
        archive.unpack(path, tmp_path / "out")
    assert not list(tmp_path.rglob("*planted"))
