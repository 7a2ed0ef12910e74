"""The report is one page that agrees with the run folders."""

import base64
import csv
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from fabricated_recordings import make_store
from fabricated_runs import add_recording, make_run, make_task_run, make_xl_run

pytest.importorskip("altair", reason='the report needs pip install -e ".[report]"')


from brt import report as command
from brt.data.extras import MissingExtra
from brt.report import files_folder, report
from brt.reporting.drawing.plots import MOST_POINTS, Line, Plot, chart, image, later_range
from brt.reporting.papers.published_tables import PAPERS
from brt.reporting.runs import open_runs

TEXT = (
    "It was Darcy <b>&amp; Élise</b>.\n" + "Nothing much was said of it.\n" * 120 + "Darcy left.\n"
)
BITS = "train/bits_per_token"
RECORDS = [
    {"step": step, BITS: 8 / step, "train/layer2/kept": 0.5 + step / 1000}
    | {"perf/tokens_per_second": 1000.0, "data/ledger": "00ff"}
    for step in (20, 40, 60)
] + [{"step": 60, "eval/bits_per_token": 2.5, "eval/cleared_bits_per_token": 2.75}]
EVALUATION = dict(step=100, bits_per_token=2.0696052625086265, cleared_bits_per_token=2.1234567)
EVALUATION |= dict(scored_tokens=3456.0)
SERIES = dict(name="text 0", x=[0, 1, 2], y=[0.5, -0.25, 4.125], borders=[1])
EXCERPT = dict(before="It was ", text="Darcy", after=" <b>", nats=0.25, token=7, direction="better")
STUDY = {
    "study": "compare",
    "verdict": "The <run> is 0.1 bits better.",
    "numbers": {"difference_bits": 0.0123456789, "of": 20},
    "series": [SERIES | {"x_label": "token", "y_label": "difference, nats"}],
    "excerpts": [EXCERPT | {"rank": 0, "last_seen": 60123, "where": "beyond"}],
}


class Page(HTMLParser):
    """Cells of tables, links, and the embedded data of the reader and of charts of a page."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.loaded, self.data, self.charts, self._inside = [], [], None, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.loaded += [given[k] for k in ("src", "href") if k in given and given[k][0] != "#"]
        self._inside = given.get("id", given.get("type", tag)) if tag in ("script", "td") else None

    def handle_data(self, text):
        if self._inside == "reader-data":
            self.data = json.loads(text)
        elif self._inside == "application/json":
            self.charts.append(json.loads(text))
        elif self._inside == "td":
            self.cells.append(text.split(" [")[0])
        self._inside = None


def numbers(packed, dtype):
    return np.frombuffer(base64.b64decode(packed), dtype)


@pytest.fixture(scope="module")
def made(folder):
    """Two runs with all a run may have, and their report."""
    store = make_store(folder / "store" / "validation", [TEXT, "second text\n"])
    nats_T = np.random.default_rng(0).gamma(1.0, 1.0, store.num_tokens).astype(np.float32)
    common = {"evaluations": {"validation": EVALUATION}, "records": RECORDS}
    runs = [make_run(folder / "rec", "small/rec_fixed_skip+corpora/text", **common)]
    runs.append(make_run(folder / "slide", "small/slide_5l+corpora/text", **common))
    add_recording(runs[0], store, "kept", nats_T)
    add_recording(runs[0], store, "cleared", nats_T + 0.5)
    add_recording(runs[1], store, "kept", nats_T[::-1])
    (runs[0] / "studies").mkdir()
    (runs[0] / "studies" / "compare.json").write_text(json.dumps(STUDY))
    output = folder / "out" / "report.html"
    report(open_runs(runs), output, published=True)
    return output, output.read_text(), nats_T, store


def test_the_page_needs_no_network(made):
    _, text, _, _ = made
    assert Page(text).loaded == []
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy and "http" not in policy and "*" not in policy
    assert not re.search(r"(?:@import|url\((?!#)|fetch\(|src=)", text.split("<script")[0])


def test_the_numbers_of_the_page_are_those_of_its_tables(made):
    output, text, _, _ = made
    cells, values = [], []
    for file in files_folder(output).glob("*.csv"):
        if not file.with_suffix(".png").exists():
            heads, *rows = csv.reader(file.read_text().splitlines())
            for head, cell in ((head, cell) for row in rows for head, cell in zip(heads, row)):
                (values if head.endswith(", every seed") else cells).append(cell)
    assert sorted(Page(text).cells) == sorted(cells)
    numbers = {float(value) for value in " ".join(values).split()}
    assert {*EVALUATION.values(), STUDY["numbers"]["difference_bits"], 20} <= numbers
    assert "2.0696" in text and "0.012346" in text


def test_every_figure_has_a_png_and_its_numbers_beside_the_page(made):
    output, text, _, _ = made
    names = re.findall(r'<figure id="(\w+)"', text)
    assert {"training_loss", "evaluation_loss", "kept", "speed", "figure_3", "figure_7"} <= set(
        names
    )
    for name in names:
        assert (files_folder(output) / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (files_folder(output) / f"{name}.csv").exists()
    with open(files_folder(output) / "training_loss.csv") as file:
        rows = list(csv.DictReader(file))
    expected = [(str(r["step"]), repr(r[BITS])) for r in RECORDS[:3]]
    assert [(r["step"], r["bits per token"]) for r in rows if r["line"] == "rec"] == expected
    (study,) = files_folder(output).glob("compare_rec_*.csv")
    assert study.read_text().split("\n")[3] == "text 0,2,4.125"


@pytest.fixture(scope="module")
def relatives(tmp_path_factory):
    """The report of runs of the other papers' models, on text and on tasks, with studies."""
    folder = tmp_path_factory.mktemp("relatives")
    text = {"evaluations": {"test": {"perplexity": 25.125, "bits_per_token": 1.25}}}
    task = {"evaluations": {"test": {"task_accuracy": 0.987, "answer_accuracy": 0.912}}}
    words = {"evaluations": {"validation": {"word_level_perplexity": 163.4}}}
    runs = [
        make_xl_run(folder / "xl", size="151M", memory=75, segment=150, steps=200_000, **text),
        make_xl_run(folder / "rmt", size="41M", tokens=10, depth=1, **text),
        make_task_run(folder / "copy", "CopyTask", segments=3, tokens=24, **task),
        make_task_run(folder / "equations", "QuadraticEquations", length=30, segments=6, **task),
        make_run(folder / "gpt2", "pretrained/gpt2_pooled+corpora/pg19_first", **words),
    ]
    studies = runs[0] / "studies"
    studies.mkdir()
    map_XJ = np.random.default_rng(0).random((8, 12))
    (studies / "attention.json").write_text(json.dumps(ATTENTION))
    np.savez(studies / "attention.npz", wide=map_XJ)
    names = [str(run) for run in runs[:2]]
    rows = [{"run": n, "r0.1": 300, "r0.1_ended": n == names[0]} for n in names]
    (studies / "recl.json").write_text(json.dumps({"study": "recl", "table": rows}))
    report(open_runs(runs), folder / "report.html", published=True)
    return folder / "report.html", map_XJ


MAP = dict(array="wide", title="A <wide> head", caption="Rows are tokens.", marked=[1, 3])
MAP |= dict(x_label="key", y_label="token", x_ends=[-4, 7], y_ends=[0, 7])
ATTENTION = {
    "study": "attention",
    "arrays": "attention.npz",
    "maps": [MAP | {"x_borders": [4], "y_borders": []}],
    "texts": [{"title": "head 1", "parts": [["It <was> ", False], ["Darcy", True]]}],
}


def test_every_table_and_figure_of_the_papers_is_on_the_page(relatives):
    output, _ = relatives
    page = output.read_text()
    for of in PAPERS[1:]:
        for kind, things in (("csv", of.tables), ("png", of.plots)):
            for thing in things:
                assert f'id="{thing.name}"' in page
                assert (files_folder(output) / f"{thing.name}.{kind}").stat().st_size > 50
    for text in ("25.13", "0.987", "0.912", "1.250", "Tr-XL", "29.95 ± 0.15", "1,874", "163.40"):
        assert text in page
    assert 'id="table_1"' not in page  # no run here is of the Block-Recurrent paper


def test_maps_and_marked_text_of_studies_are_on_the_page(relatives):
    output, map_XJ = relatives
    page, files = output.read_text(), files_folder(output)
    assert "A &lt;wide&gt; head" in page and "It &lt;was&gt; <mark" in page
    lines = (files / "attention_xl_map_1_wide.csv").read_text().split()
    rows = [line.split(",") for line in lines[1:]]
    found = np.array([[float(x) for x in row[-12:]] for row in rows[-8:]])
    assert np.allclose(found, map_XJ, atol=1e-5)
    assert "300 or more" in page
    shown = [drawn(chart, "value") for chart in Page(page).charts]
    assert any(len(v) == map_XJ.size and np.allclose(v, map_XJ.ravel(), atol=1e-5) for v in shown)


def test_the_reader_has_every_loss_and_the_whole_text(made):
    _, text, nats_T, _ = made
    first = Page(text).data["documents"][0]
    assert first["text"] == TEXT and first["tokens"] == len(TEXT.encode())
    lengths = numbers(first["lengths"], "<u2")
    assert lengths.sum() == len(TEXT) and len(lengths) == first["tokens"]
    names = ["rec, state kept", "rec, state cleared", "slide, state kept"]
    assert [recording["name"] for recording in first["recordings"]] == names
    kept = numbers(first["recordings"][0]["nats"], "<f4")
    assert np.array_equal(kept, nats_T[: first["tokens"]])
    seen = numbers(first["last_seen"], "<u4")
    last = len(TEXT.encode()) - len("Darcy left.\n")
    assert seen[7] == 0 and seen[last] == last - 7


def test_a_run_still_being_written_is_reported_as_far_as_it_goes(tmp_path, capsys):
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text", records=RECORDS)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 80, "train/bits_per')
    damaged = {"test": '{"step": 6', "train": '{"f1": null}', "validation": '{"f1": "x"}'}
    for split, content in damaged.items():
        (run / f"evaluation_{split}.json").write_text(content)
    report(open_runs([run]), tmp_path / "report.html")
    text, said = (tmp_path / "report.html").read_text(), capsys.readouterr().out
    for split in damaged:
        assert f"evaluation_{split}.json" in text and f"evaluation_{split}.json" in said


BAD_STUDIES = {
    "numbers": {"numbers": 3},
    "excerpts": {"excerpts": [{"rank": "first"}]},
    "texts": {"texts": 3},
    "errors": {"series": [{"x": [1, 2], "y": [1, 2], "errors": [1]}]},
    "maps": {"arrays": "../maps.npz", "maps": [{"array": "m"}]},
    "y": {"series": [{"x": [1], "y": [None]}]},
    "label": {"series": [{"x": [1], "y": [1], "x_label": 3}]},
    "parts": {"texts": [{"parts": 3}]},
}


@pytest.mark.parametrize("field", BAD_STUDIES)
def test_a_damaged_study_is_named_and_others_are_shown(tmp_path, field):
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text")
    (run / "studies").mkdir()
    np.savez(run / "maps.npz", m=np.ones((2, 2)))
    (run / "studies" / "bad.json").write_text(json.dumps(BAD_STUDIES[field]))
    (run / "studies" / "compare.json").write_text(json.dumps(STUDY))
    report(runs := open_runs([run]), tmp_path / "report.html")
    (problem,) = runs[0].problems
    assert f"{run}/studies/" in problem
    assert "0.1 bits better" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e308, 1e308])
def test_extreme_numbers_of_a_run_are_on_its_page(tmp_path, value):
    runs = []
    for seed in (0, 1):
        numbers = {"bits_per_token": value, "loss": value, "cleared_loss": value}
        run = make_run(
            tmp_path / f"run-seed{seed}",
            "small/rec_fixed_skip+corpora/text",
            seed=seed,
            evaluations={"test": numbers},
            records=[{"step": s, "train/bits_per_token": value} for s in (1, 2)],
        )
        (run / "studies").mkdir()
        study = STUDY | {"numbers": {"bits": value}}
        study["series"] = [{"name": "s", "x": [0, 1], "y": [value, 1.0], "errors": [value, 1.0]}]
        (run / "studies" / "compare.json").write_text(json.dumps(study))
        runs.append(run)
    report(opened := open_runs(runs), tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert page.charts and not any(run.problems for run in opened)
    assert [cell for cell in page.cells if re.search("nan|inf|e[+]", cell)]


@pytest.mark.parametrize("other", ["other documents", "another tokenizer", "a cut recording"])
def test_recordings_that_do_not_align_are_named_and_left_out(tmp_path, other):
    store = make_store(tmp_path / "a" / "validation", [TEXT])
    nats_T = np.ones(store.num_tokens)
    runs = [
        make_run(tmp_path / name, "small/rec_fixed_skip+corpora/text") for name in ("one", "two")
    ]
    add_recording(runs[0], store, "kept", nats_T)
    text = TEXT if other == "a cut recording" else "something else\n"
    second = make_store(tmp_path / "b" / "validation", [text])
    folder = add_recording(runs[1], second, "kept", np.ones(second.num_tokens))
    manifest = json.loads((folder / "manifest.json").read_text())
    if other == "another tokenizer":
        manifest["store"]["vocabulary"] |= {"name": "t5", "fingerprint": "0"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        expected = "have different tokenizers, bytes"
    elif other == "other documents":
        expected = "hold different documents"
    else:
        (folder / "0.npz").write_bytes((folder / "0.npz").read_bytes()[:100])
        expected = "A recording was left out"
    report(open_runs(runs), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert expected in page
    assert [r["name"] for r in Page(page).data["documents"][0]["recordings"]] == ["one, state kept"]


def test_a_document_has_its_recordings_fullest_first(tmp_path):
    store = make_store(tmp_path / "a" / "validation", [TEXT, "two\n", "three\n"])
    run = make_run(tmp_path / "one", "small/rec_fixed_skip+corpora/text")
    nats_T = np.ones(store.num_tokens)
    add_recording(run, store, "kept", nats_T, done=[1, 1, 0])
    add_recording(run, store, "cleared", nats_T, done=[0, 1, 0])
    report(open_runs([run]), tmp_path / "report.html")
    found = Page((tmp_path / "report.html").read_text()).data["documents"]
    assert [(d["number"], len(d["recordings"])) for d in found] == [(1, 2), (0, 1)]


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtra, match=r"\[report\]"):
        command.main(["run"])


def test_what_is_no_run_folder_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        open_runs([tmp_path / "missing"])
    with pytest.raises(FileNotFoundError, match=r"has no config\.gin"):
        open_runs([tmp_path])
    run = make_run(tmp_path / "run", "small/slide_5l+corpora/text")
    with pytest.raises(ValueError, match=r"/run is named twice"):
        command.expanded([str(run), f"{tmp_path}/./run"])


def drawn(chart, column):
    """Numbers of a column of the data of a chart."""
    tables = (csv.DictReader(text.split("\n")) for text in chart["datasets"].values())
    return [float(row[column]) for rows in tables for row in rows if row.get(column)]


def test_a_long_line_is_thinned_without_losing_its_spike():
    y = np.zeros(50_000)
    y[31_234] = 9.0
    plot = Plot("p", "t", "c", "x", "y", [Line("line", list(range(50_000)), y.tolist())])
    values = drawn(chart(plot).to_dict(), "value")
    assert 2 < len(values) <= MOST_POINTS and max(values) == 9.0
    assert plot.as_csv().count("\n") == 50_001


@pytest.mark.parametrize("points", [0, 3])
def test_a_line_without_points_is_drawn_beside_others(points):
    lines = [Line("empty", [], []), Line("other", [1, 2, 3][:points], [4.0, 5.0, 6.0][:points])]
    plot = Plot("p", "t", "c", "x", "y", lines, y_range=later_range(lines))
    assert sorted({*drawn(chart(plot).to_dict(), "value")}) == [4.0, 5.0, 6.0][:points]
    assert image(plot)[:4] == b"\x89PNG"
