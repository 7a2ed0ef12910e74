"""The report of a sweep: means, differences paired by seed, and one colour for each entry."""

import json
import statistics

import pytest
from browser import open_page
from fabricated_runs import SMALL, make_run
from marking import slow

pytest.importorskip("altair", reason='the report needs pip install -e ".[report]"')

from brt import report as command
from brt.report import expanded, report
from brt.reporting.collect import collect
from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.figures import training_curves
from brt.reporting.runs import open_runs
from brt.reporting.sweep_folder import SWEEP_FILE, Sweep, read_sweep, run_folders, sweep_json
from brt.reporting.sweep_tables import entry_plot, entry_table, one_number, paired, results

NONE, ONE = "recurrent_layers=()", "recurrent_layers=(1,)"
BITS = {NONE: {0: 4.25, 1: 4.5, 2: 4.0}, ONE: {0: 4.125, 1: 4.4375, 3: 1.0}}


def records(value, *names):
    return [{"step": step, **dict.fromkeys(names, value)} for step in (10, 20)]


def a_sweep(folder, bits=BITS, scalars=("train/bits_per_token",)):
    """A sweep of entries with bits per token by label and seed."""
    labels = {}
    (folder / "configs").mkdir(parents=True)
    for label, by_seed in bits.items():
        binding = f"BlockRecurrentTransformer.{label}"
        name = f"quickstart-{binding}".replace("=()", "_empty").replace("=(1,)", "_1")
        labels[name] = label
        (folder / "configs" / f"{name}.gin").write_text(f"{binding}\n")
        for seed, value in by_seed.items():
            make_run(
                folder / "runs" / f"{name}-seed{seed}",
                "quickstart",
                binding,
                seed=seed,
                evaluations={"validation": value},
                records=records(value, *scalars),
                config="quickstart.gin",
                settings={},
            )
    sweep = Sweep("Entries of a grid", "validation", labels)
    (folder / SWEEP_FILE).write_bytes(sweep_json(sweep))
    return folder


def opened(folder):
    sweep = read_sweep(folder)
    runs = open_runs(run_folders(folder, sweep)[0])
    return runs, collect(runs, sweep), sweep


def test_differences_are_those_of_runs_with_the_same_seed(tmp_path):
    _, entries, sweep = opened(a_sweep(tmp_path / "sweep"))
    first, second = (entry.runs for entry in entries)
    assert paired(second, first, "bits_per_token", "validation") == (-0.125, -0.0625)
    table = entry_table(entries, sweep.title, sweep.split)
    (at,) = [i for i, head in enumerate(table.heads()) if "difference" in head]
    cells = [row[at] for row in table.rows]
    assert not cells[0].values and cells[1].values == (-0.125, -0.0625)
    assert "2 pairs" in cells[1].note  # of three runs
    mean, half = confidence_interval(cells[1].values)
    shown, bar = cells[1].text.replace("−", "-").split(" ± ")
    assert float(shown) == pytest.approx(mean, abs=6e-4)
    assert half <= float(bar) <= half + 1e-3


def test_a_single_seed_has_a_difference_without_an_interval(tmp_path):
    _, entries, _ = opened(a_sweep(tmp_path / "sweep", {NONE: {0: 4.25}, ONE: {0: 4.125}}))
    shown = " ".join(cell.text for row in entry_table(entries, "t").rows for cell in row)
    assert "−0.125" in shown and "±" not in shown


def test_runs_on_other_texts_are_not_subtracted(tmp_path):
    runs = [
        make_run(tmp_path / name, "quickstart", f'Corpus.store = "{name}"', evaluations={"test": 1})
        for name in ("a", "b")
    ]
    one, other = open_runs(runs)
    assert paired([one], [other], "bits_per_token", "test") == ()
    assert paired([one], [one], "bits_per_token", "test") == (0,)


def test_runs_on_other_mixtures_are_not_subtracted(tmp_path):
    """`c` has the corpora of `a` by other names."""
    runs = []
    for name, stores in {"a": ("x", "y"), "b": ("x", "z"), "c": ("y", "x")}.items():
        lines = *SMALL, "Trainer.model = @TransformerXL", "Trainer.segment_length = 8"
        lines += tuple(
            f'{scope}/Corpus.store = "{store}"' for scope, store in zip(("first", "second"), stores)
        )
        runs.append(make_run(tmp_path / name, None, *lines, evaluations={"test": 1}))
    a, b, c = open_runs(runs)
    assert paired([a], [b], "bits_per_token", "test") == ()
    assert paired([a], [c], "bits_per_token", "test") == (0,)


def test_seeds_are_averaged_with_a_band_in_the_entrys_colour(tmp_path):
    scalars = "eval/bits_per_token", "eval/cleared_bits_per_token"
    _, entries, _ = opened(a_sweep(tmp_path / "sweep", scalars=scalars))
    (plot,) = training_curves(entries)
    assert {(line.name, line.colour) for line in plot.lines} == {(NONE, 0), (ONE, 1)}
    assert len({line.label for line in plot.lines}) == len(plot.lines) == 4
    values = list(BITS[ONE].values())
    for line in plot.lines[1::2]:
        assert line.y == pytest.approx([sum(values) / 3] * 2)
        assert line.errors == pytest.approx([statistics.stdev(values) / 3**0.5] * 2)


def test_only_steps_that_all_seeds_logged_are_averaged(tmp_path):
    runs, entries, _ = opened(a_sweep(tmp_path / "sweep", {NONE: {0: 4.0, 1: 2.0}}))
    runs[0].records.append({"step": 30, "train/bits_per_token": 9.0})
    (plot,) = training_curves(entries)
    assert (plot.lines[0].x, plot.lines[0].y) == ([10, 20], [3.0, 3.0])


def test_each_metric_of_a_sweep_has_a_figure(tmp_path):
    scalars = "eval/recall_accuracy", "eval/recall_accuracy_near", "eval/cleared_recall_accuracy"
    _, entries, _ = opened(a_sweep(tmp_path / "sweep", scalars=scalars))
    plots = training_curves(entries)
    assert len({plot.name for plot in plots}) == len({plot.title for plot in plots}) == 2
    assert sorted(len(plot.lines) for plot in plots) == [2, 4]


def test_questions_of_a_run_have_colours_and_dashes_if_cleared(tmp_path):
    scalars = [f"eval/{c}{n}_accuracy" for c in ("", "cleared_") for n in ("answer", "recall")]
    runs = open_runs([make_run(tmp_path / "run", "quickstart", records=records(0.5, *scalars))])
    (plot,) = training_curves(collect(runs))
    states = "state kept", "state cleared"
    names = "answer accuracy", "recall accuracy"
    assert [line[0] for line in plot.lines] == [name for name in names for _ in states]
    assert [line.state for line in plot.lines] == [*states, *states]


def test_runs_without_a_sweep_are_named_by_what_differs(tmp_path):
    folder = a_sweep(tmp_path / "sweep")
    runs = open_runs(sorted((folder / "runs").iterdir()))
    found = {entry.name: len(entry.runs) for entry in collect(runs)}
    assert found == {NONE: 3, ONE: 3}
    assert runs[0].name == f"{ONE}, seed 0"
    report(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    first = page[page.index("<section") : page.index("</section>")]
    assert NONE in first and ONE in first and 'id="block_recurrent"' not in page


def test_without_an_evaluation_the_last_one_in_training_counts(tmp_path):
    scalars = "eval/bits_per_token", "eval/cleared_bits_per_token"
    runs, entries, sweep = opened(a_sweep(tmp_path / "sweep", scalars=scalars))
    for run in runs:
        run.evaluations.clear()
    (row, _) = entry_table(entries, sweep.title).rows
    assert [cell.values for cell in row[1:3]] == [tuple(BITS[NONE].values())] * 2
    assert "bits per token" not in entry_table(entries, "t", "validation").heads()


def test_a_sweep_folder_alone_gives_the_page_of_the_sweep(tmp_path):
    folder = a_sweep(tmp_path / "sweep")
    (folder / "runs" / "quickstart-BlockRecurrentTransformer.recurrent_layers_1-seed9").mkdir()
    paths, sweep, (note,) = expanded([str(folder)])
    assert len(paths) == 6 and "recurrent_layers_1-seed9" in note
    assert sweep == read_sweep(folder)
    assert expanded(paths)[1] is None
    other = make_run(tmp_path / "other", "quickstart")
    assert expanded([str(folder), str(other)])[1] is None
    command.FLAGS(["report", f"--output={tmp_path}/page.html"])
    command.main([str(folder)])
    page = (tmp_path / "page.html").read_text()
    order = [
        page.index(f'id="{name}"') for name in ("entries", "sweep", "training_loss", "overview")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", SWEEP_FILE),
        ({"title": "t", "split": "test", "entries": [{"name": "../x", "label": "x"}]}, "'../x'"),
        ({"title": "t", "split": "test", "entries": 3}, "entries"),
        ({"title": "t", "split": "test", "entries": []}, "no run"),
    ],
)
def test_a_damaged_sweep_is_refused_in_a_sentence(tmp_path, content, message):
    folder = a_sweep(tmp_path / "sweep")
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / SWEEP_FILE).write_text(text)
    with pytest.raises((ValueError, OSError), match=message):
        expanded([str(folder)])


def test_entries_that_no_number_orders_are_rows(tmp_path):
    _, entries, _ = opened(a_sweep(tmp_path / "sweep"))
    assert entry_plot(entries).rows == (NONE, ONE)
    assert one_number(["window=8", "window=16"]) == ("window", [8.0, 16.0])
    assert one_number(["gate=fixed", "gate=lstm"]) == ("", [])
    assert one_number(["window=8, c=1", "window=16, c=1"]) == ("", [])


def test_entries_without_bits_or_accuracy_have_a_table_alone(tmp_path):
    measured = {seed: {"f1": 0.5} for seed in (0, 1)}
    _, entries, sweep = opened(a_sweep(tmp_path / "sweep", {NONE: measured, ONE: measured}, ()))
    (table,) = results(entries, sweep.title)
    assert len(table.rows) == 2


WIDTH = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  document.body.dataset.scrolls = root.scrollWidth > root.clientWidth;
});</script>"""


@pytest.mark.parametrize("width", [390, slow(1280)])
@pytest.mark.parametrize("named", ["sweep", slow("runs")])
def test_a_page_with_long_names_never_scrolls_sideways(tmp_path, width, named):
    long, sweep = "NoBreak" * 12, None
    if named == "sweep":
        runs, _, sweep = opened(a_sweep(tmp_path / "sweep"))
        labels = {name: long + label for name, label in sweep.labels.items()}
        sweep = sweep._replace(labels=labels)
    else:
        folders = [
            make_run(
                tmp_path / f"{long}{label}",
                "quickstart",
                f"BlockRecurrentTransformer.{label}",
                evaluations={"validation": 4.25},
                records=records(4.25, "train/bits_per_token"),
            )
            for label in BITS
        ]
        runs = open_runs(folders)
    report(runs, tmp_path / "page.html", sweep=sweep)
    page = (tmp_path / "page.html").read_text()
    assert long in page
    (tmp_path / "page.html").write_text(page.replace("</body>", WIDTH + "</body>"))
    dom = open_page(f"file://{tmp_path}/page.html", tmp_path / "opened", width=width)
    assert 'data-scrolls="false"' in dom
