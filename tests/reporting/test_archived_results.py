"""The pages of results agree with the archived records."""

import copy
import csv
import functools
import itertools
import math
import re
import shutil
import tomllib
from collections import Counter

import numpy as np
import pytest
from manual_tables import CHECKED, FOLDER, PAGES, manual_table
from paths import ROOT
from scipy.stats import ttest_1samp

pytest.importorskip("altair", reason='the pages need pip install -e ".[report]"')

from results_page import records
from results_page.page import MARKED, NOT_RUN, SPECS, write_results
from results_page.records import accuracy

from brt.data.tasks.answers import answers_of
from brt.data.tasks.mqar import MultiQueryRecall
from brt.data.tasks.small_world import story
from brt.evaluation.token_kinds import KINDS

NOT_ARCHIVED = {"2.148", "2.171", "2.199", "2.200", "2.209"}
"""Losses of runs whose records were not kept, and of a study that is in no table."""
MARK = re.compile(r"(\S+(?: ± \S+)?)( %)?\s*<!-- ([\w.]+) :: ([^|>]+?) :: ([^|>]+?) -->")
"""A number, and the table, row (its first cells) and column that it is from.

No `|`, which would end a cell of a Markdown table.
"""
INTERVAL = r"-?\d\.\d{3} ± \d\.\d{3}"
WORDS = {"half": 0.5, "quarter": 0.25}
ROUGHLY = 0.03


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the folder whose generated text and figures were removed and built again."""
    folder = tmp_path_factory.mktemp("built") / "results"
    shutil.copytree(FOLDER, folder)
    for page in PAGES:
        text = (folder / page).read_text()
        emptied = MARKED.sub(lambda mark: f"<!-- {mark[1]} {mark[2]} -->\n<!-- end -->\n", text)
        (folder / page).write_text(emptied)
    for file in (folder / "figures").glob("*.csv"):
        file.unlink()
        file.with_suffix(".png").unlink()
    return folder, write_results(folder)


def test_the_pages_are_what_the_archived_records_give(built):
    folder, found = built
    assert not found.problems
    for page in PAGES:
        text = (folder / page).read_text()
        assert text == (FOLDER / page).read_text()
        for image in re.findall(r"\]\((\S*?\.png)\)", text):
            assert (folder / image).is_file(), image
        empty = {mark[2] for mark in MARKED.finditer(text) if f"\n{NOT_RUN}\n" in mark[0]}
        assert not empty
    names = [{f.name for f in path.glob("figures/*")} for path in (FOLDER, folder)]
    assert names[0] == names[1]
    for file in (FOLDER / "figures").glob("*.csv"):
        again = folder / "figures" / file.name
        rows = [csv.reader(path.read_text().splitlines()) for path in (file, again)]
        for cells in zip(*rows, strict=True):
            for a, b in zip(*cells, strict=True):  # the last digits depend on SciPy's version
                assert a == b or math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1e-9)


def test_every_table_and_figure_of_tables_toml_is_on_a_page(built):
    marks = {m[2] for page in PAGES for m in MARKED.finditer((FOLDER / page).read_text())}
    assert {*built[1].tables, *built[1].plots} == marks


def test_the_first_page_and_the_folder_stay_small():
    prose = re.sub(r"<!--.*?-->", "", MARKED.sub("", (FOLDER / "README.md").read_text()))
    assert len(prose.split()) <= 1200
    assert sum(f.stat().st_size for f in FOLDER.rglob("*") if f.is_file()) < 9 * 2**20
    assert sum(f.read_text().count("\n") for f in FOLDER.rglob("*.py")) <= 900


def cells_of(found):
    """Heads and rows of all tables as texts: generated, written manually, and of compressors."""
    tables = {name: (table.heads(), [[c.text for c in row] for row in table.rows])
              for name, table in found.tables.items()}  # fmt: skip
    for page in PAGES:
        for match in CHECKED.finditer((FOLDER / page).read_text()):
            heads, *rows = manual_table(match[1])
            tables[match[1]] = heads, rows
    rows = csv.reader((FOLDER / "baselines.csv").read_text().splitlines())
    heads, *rest = ([f"{row[0]}, {row[1]}", row[2]] for row in rows)
    tables["baselines"] = ["", heads[1]], rest
    return tables


def agrees(number, is_percent, cell):
    """Returns whether a number, rounded or in percent, is one of those of a cell."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?: ± [\d.]+)?", cell)
    if "±" in number or number in numbers:
        return number in numbers
    values = [float(each.split(" ±")[0].replace(",", "")) for each in numbers]
    if number in WORDS:
        return any(abs(value - WORDS[number]) < ROUGHLY for value in values)
    scale, decimals = 100 if is_percent else 1, len(number.partition(".")[2])
    return any(round(scale * value, decimals) == float(number) for value in values)


@pytest.mark.parametrize("page", [ROOT / "README.md", *(FOLDER / page for page in PAGES)],
                         ids=lambda page: f"{page.parent.name}-{page.stem}")  # fmt: skip
def test_a_number_agrees_with_the_cell_that_its_mark_names(built, page):
    tables = cells_of(built[1])
    marks = list(MARK.finditer(MARKED.sub("", page.read_text())))
    assert marks or page.name != "README.md"
    for number, percent, name, row, column in (match.groups() for match in marks):
        heads, rows = tables[name]
        own = [cells for cells in rows if cells[0] == row]
        own = own or [cells for cells in rows if f"{', '.join(cells)}, ".startswith(f"{row}, ")]
        cells = [cells[heads.index(column)] for cells in own]
        number = number.strip("(*").removesuffix(",")
        assert len(cells) == 1, (name, row, len(cells))
        assert agrees(number, bool(percent), cells[0]), (number, cells[0], name, row, column)


@pytest.mark.parametrize("page", [ROOT / "README.md", FOLDER / "README.md"])
def test_every_measured_number_of_the_first_pages_has_a_mark(page):
    text = re.sub(r"^```.*?^```", "", MARKED.sub("", page.read_text()), flags=re.S | re.M)
    text = re.sub(r"\]\(.*?\)", "]", MARK.sub("", text)).replace("95 % interval", "")
    assert not re.findall(r"(?:\d\.\d{3}|\d ± \d|\d %).{0,40}", text)


def test_the_readmes_printed_output_is_archived(built):
    readme = (ROOT / "README.md").read_text()
    heads, rows = cells_of(built[1])["board"]
    columns = [heads.index(head) for head in ("memory", "bytes carried", "256 tokens back",
                                              "4,096 tokens back")]  # fmt: skip
    known = [[row[column] for column in columns] for row in rows]
    board = CHECKED.search(readme)[2].splitlines()[2:]
    for line in board:
        assert [cell.strip() for cell in line.strip("|").split("|")] in known
    table, heads = built[1].tables["quickstart_runs"], built[1].tables["quickstart_runs"].heads()
    kept, cleared = (table.rows[0][heads.index(head)].values[0]
                     for head in ("bits per byte", "state cleared"))  # fmt: skip
    assert f"{kept:.3f} bits per token (a byte) with the state kept, {cleared:.3f} with" in readme
    assert f"costs the text model {(cleared - kept) / kept:.1%} more bits" in readme
    (scores,) = (run.evaluations["validation"] for run in runs_of(built, "quickstart")
                 if "recall_accuracy" in run.evaluations.get("validation", {}))  # fmt: skip
    right, without = (100 * scores[f"{state}recall_accuracy"] for state in ("", "cleared_"))
    assert f"{right:.1f} % with the state kept, {without:.1f} % with it cleared" in readme
    assert f"recall {right - without:.1f} points" in readme


def test_a_wrong_number_does_not_agree():
    cell = "0.90 / 0.86"
    assert agrees("90", True, cell) and agrees("0.9", False, cell) and agrees("86", True, cell)
    assert not agrees("91", True, cell) and not agrees("0.88", False, cell)
    assert agrees("0.070 ± 0.029", False, "0.070 ± 0.029")
    assert not agrees("0.070 ± 0.028", False, "0.070 ± 0.029") and not agrees("half", False, cell)


STUDENT = {3: 4.3027, 5: 2.7764, 6: 2.5706}
"""Student's t of 95 % by the number of seeds."""


def prose():
    """The text of all pages, without generated parts and tables that other tests compare."""
    texts = ((FOLDER / page).read_text() for page in PAGES)
    return " ".join(
        CHECKED.sub(lambda m: m[0] if m[1] == "files_rules" else "", MARKED.sub("", text))
        for text in texts
    )


def interval(values):
    """Returns mean and half of the 95 % interval of some seeds, by Student's t, as text."""
    half = STUDENT[len(values)] * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def test_every_interval_in_the_text_is_of_archived_seeds(built):
    """Each is that of a cell, or of the differences of two cells of one experiment."""
    by_experiment = {}
    for name, table in built[1].tables.items():
        name = "files" if name == "front" else name.partition("_")[0]
        cells = (cell.values for row in table.rows for cell in row if len(cell.values) in STUDENT)
        by_experiment.setdefault(name, set()).update(cells)
    computed = set()
    for cells in by_experiment.values():
        computed |= set(map(interval, cells))
        computed |= {interval(np.subtract(a, b)) for a, b in itertools.permutations(cells, 2)
                     if len(a) == len(b)}  # fmt: skip
    # Of studies, which another test compares with their records.
    computed |= {cell for row in manual_table("files_depth_words") for cell in row}
    printed = set(re.findall(INTERVAL, prose().replace("\n", " ")))
    assert len(printed) > 12 and printed <= computed


def test_every_number_in_the_text_is_in_a_table(built):
    """All but marked numbers and intervals, which other tests compare."""
    pages = [(FOLDER / page).read_text() for page in PAGES]
    tables = " ".join(mark[0] for text in pages for mark in MARKED.finditer(text))
    tables += " ".join(m[2] for text in pages for m in CHECKED.finditer(text)
                       if m[1] != "files_rules")  # fmt: skip
    reach = {f"{y:.3f}" for run in runs_of(built) for s in studies(run, "reach")
             for curve in s["series"] for y in curve["y"]}  # fmt: skip
    baselines = re.findall(r"\d+\.\d+", (FOLDER / "baselines.csv").read_text())
    known = {*re.findall(r"(?<!± )\b\d+\.\d{3}\b", tables), *reach}
    known |= {f"{float(text):.3f}" for text in baselines}
    text = re.sub(INTERVAL, "", MARK.sub("", prose().replace("\n", " ")))
    printed = set(re.findall(r"\d+\.\d{3}\b", text))
    assert len(printed) > 50 and printed - known <= NOT_ARCHIVED


def runs_of(built, *ladders):
    return [run for entry in built[1].entries for run in entry.runs
            if not ladders or entry.ladder in ladders]  # fmt: skip


def studies(run, name):
    return [study for study in run.studies.values() if study.get("study") == name]


@functools.cache
def right(facts):
    """The share of 20,000 stories whose answer is the location that was named last."""
    random = np.random.default_rng(facts)
    stories = [story("qa1", facts, random) for _ in range(20_000)]
    return np.mean([each.facts[-1].endswith(f" {each.answer}.") for each in stories])


def test_no_memory_is_above_the_place_that_was_named_last(built):
    rule, *memories = built[1].tables["babilong_facts"].rows
    two, four = right(2), right(4)
    shares = [np.mean([1, two, four]), two, four, *[(two + four) / 2] * 4]
    assert [cell.text for cell in rule[2:9]] == [f"{share:.2f}" for share in shares]
    assert two == pytest.approx(1 / 4 + 3 / 4 * (1 / 2 + 1 / 2 / 6), abs=0.01)  # counted manually
    assert len(memories) > 10
    for row in memories:
        for column in range(2, 9):
            shares = [float(share) for share in row[column].text.split(" / ") if share != "–"]
            assert max(shares) < float(rule[column].text), row[0].text


def test_numbers_of_far_queries_are_those_of_the_studies(built):
    @functools.cache
    def drawn(lengths, documents, *settings):
        task = MultiQueryRecall(**dict(settings), lengths=lengths, num_held_out=max(documents) + 1)
        counts = Counter()
        for number, document in enumerate(task.documents("validation")):
            if number in documents:
                for answer in answers_of(document.annotation).answers:
                    counts[1 << (answer.distance.bit_length() - 1)] += 1
        return counts

    found = {}
    for ladder in ("mqar", "mqar_64"):
        for run in runs_of(built, ladder):
            for study in studies(run, "answers"):
                (lengths,) = (tuple(map(int, s["x"])) for s in study["series"]
                              if s["name"] == "state kept, by length")  # fmt: skip
                named = [(name.partition(".")[2], value) for name, value in run.settings.items()
                         if name.startswith("MultiQueryRecall.")]  # fmt: skip
                named = [pair for pair in named if pair[0] not in ("lengths", "num_held_out")]
                counts = drawn(lengths, tuple(study["documents"]), *named)
                for distance in (256, 1024, 4096, 16384):
                    found.setdefault((ladder, distance), set()).add(counts[distance])
    assert found["mqar_64", 1024] == {94, 188, 195} and found["mqar_64", 16384] - {0} == {36, 73}
    # Runs at rates that the table does not show read other documents.
    assert found["mqar", 256] >= {95, 139} and found["mqar", 4096] >= {38, 73}


PLAIN, CELL, DELTA = "window (Slide)", "Rec, lstm gate", "gated delta memory"
FRONT = {PLAIN: "files_half_rate", CELL: "files_half_rate", DELTA: "files_windows"}
PLANNED = dict.fromkeys(FRONT, "files_windows")
"""Experiments of the memories in the tables `front` and `files_as_planned`."""


def differences(built, ladders, memory, window, measure):
    """By how much each run of a memory is below the plain stack with its window, by seed."""

    def by_seed(memory):
        found = {}
        for run in runs_of(built, ladders[memory]):
            bound = {name.partition(".")[2]: value for name, value in run.settings.items()}
            has_cell, has_delta = bound.get("recurrent_layers"), "Delta" in str(bound["memories"])
            kind = CELL if has_cell else DELTA if has_delta else PLAIN
            if (kind, bound["window"]) == (memory, window):
                found[run.seed] = run
        return found

    own, plain = by_seed(memory), by_seed(PLAIN)
    return [measure(plain[seed]) - measure(run) for seed, run in sorted(own.items())]


def bits(run, split="validation"):
    return run.evaluations[split]["bits_per_byte"]


def late(run):
    """Bits per byte of the batches of the last fifth of training."""
    reports = [(r["step"] / run.settings["Trainer.steps"], r["train/bits_per_token"])
               for r in run.records if "train/bits_per_token" in r]  # fmt: skip
    scores = run.evaluations["validation"]
    return np.mean([x for at, x in reports if at > 0.8]) * scores["tokens"] / scores["bytes"]


def test_the_front_has_differences_of_runs_with_the_same_seed(built):
    table, tested = built[1].tables["front"], {}
    columns = {"improvement": bits, "on fresh text": late,
               "on the test split": functools.partial(bits, split="test")}  # fmt: skip
    rows = [dict(zip(table.heads(), row)) for row in table.rows]
    memories = [(row["memory"].text, int(row["W"].text), row) for row in rows]
    assert [(memory, window) for memory, window, _ in memories] == [
        (memory, window) for window in (8, 32, 128) for memory in FRONT
    ]
    for memory, window, row in memories:
        for column, measure in columns.items():
            values = differences(built, FRONT, memory, window, measure)
            if memory != PLAIN:
                assert row[column].values == pytest.approx(values)
                assert row[column].text == interval(values)
        for number, ladders in enumerate((FRONT, PLANNED) if memory != PLAIN else ()):
            values = differences(built, ladders, memory, window, bits)
            tested[number, memory, window] = ttest_1samp(values, 0).pvalue
    largest, corrected = 0, {}
    for rank, key in enumerate(sorted(tested, key=tested.get)):  # Holm's method
        largest = corrected[key] = max(largest, min(1, tested[key] * (len(tested) - rank)))
    for memory, window, row in memories:
        if memory != PLAIN:
            assert row["p, Holm"].values == pytest.approx([corrected[0, memory, window]])
    carried = {(memory, window): row["bytes carried"].text for memory, window, row in memories}
    assert carried[PLAIN, 8] == f"{4 * 2 * 7 * 8 * 64:,}"
    assert carried[CELL, 8] == f"{4 * (2 * 6 * 8 * 64 + 8 * 64):,}"


def test_a_run_on_other_data_or_cut_short_has_no_difference(built):
    found = {entry.memory: entry for entry in built[1].entries
             if entry.ladder == "files_half_rate" and entry.fields["W"] == 8}  # fmt: skip
    plain, entry = found[PLAIN], found[CELL]
    whole = entry.below(plain, records.bits)
    other, short = copy.copy(entry.runs[0]), copy.copy(entry.runs[0])
    other.records = [record | {"data/ledger": "00"} for record in other.records]
    scores = other.evaluations["validation"]
    short.evaluations = {"validation": scores | {"step": scores["step"] - 1}}
    for run in (other, short):
        changed = entry._replace(group=entry.group._replace(runs=[run, *entry.runs[1:]]))
        assert changed.below(plain, records.bits) == whole[1:]


def answered(built, name):
    """Of each row of a table of answers: its cells, and the runs at the memory's rate by seed."""
    specs = tomllib.loads(SPECS.read_text())
    spec, table = specs["table"][name], built[1].tables[name]
    for row in table.rows:
        cells, runs = dict(zip(table.heads(), (cell.text for cell in row))), []
        for entry in built[1].entries:
            memory = spec.get("names", {}).get(f"{entry.ladder}/{entry.memory}", entry.memory)
            rate = specs["rates"].get(entry.ladder, {}).get(entry.memory)
            sizes = {f"{study['numbers']['carried_bytes']:,.0f}" for run in entry.runs
                     for study in studies(run, "answers")}  # fmt: skip
            if (
                entry.ladder in spec["answers"]
                and (memory, {cells["bytes carried"]}) == (cells["memory"], sizes)
                and rate in (None, entry.settings["cosine.maximum"])
            ):
                runs += entry.runs
        yield cells, sorted(runs, key=lambda run: run.seed)


def shares(run, name):
    """The share answered in a series of the study, by x."""
    found = [s for study in studies(run, "answers") for s in study["series"] if s["name"] == name]
    return dict(zip(found[0]["x"], found[0]["y"])) if found else {}


def test_the_board_has_the_shares_of_all_runs_at_the_chosen_rate(built):
    columns = {
        "16 pairs in 64 tokens": ("state kept, 16 facts, by length", 64),
        "256 tokens back": ("state kept, by distance", 256),
        "4,096 tokens back": ("state kept, by distance", 4096),
    }
    order = []
    for cells, runs in answered(built, "board"):
        order.append((cells["memory"], int(cells["bytes carried"].replace(",", ""))))
        assert len(runs) > 0
        for column, (name, x) in columns.items():
            values = [shares(run, name).get(x) for run in runs]
            texts = ["–" if value is None else f"{value:.2f}" for value in values]
            expected = " / ".join(texts) if {*texts} != {"–"} else "–"
            assert cells[column] == expected, cells["memory"]
    chosen = tomllib.loads(SPECS.read_text())["table"]["board"]["memories"]
    assert order == [*chosen.items()]


def test_reach_and_pairs_are_those_of_the_best_run(built):
    for cells, runs in answered(built, "mqar_64_recall"):
        far = [shares(run, "state kept, 64 facts, by length").get(4096, -1) for run in runs]
        best = runs[far.index(max(far))]
        reach, pairs = 0, 0
        for distance, share in shares(best, "state kept, by distance").items():
            if share < 0.9:
                break
            reach = distance
        for facts in range(2, 65):
            if shares(best, f"state kept, {facts} facts, by length").get(512, 0) >= 0.9:
                pairs = facts
        assert (cells["reach"], cells["pairs"]) == (f"{reach:,.0f}", str(pairs)), cells["memory"]


def test_manual_tables_of_settings_and_checksums_agree(built):
    depths = {}
    for entry in built[1].entries:
        for run in entry.runs:
            segments = run.settings.get("Trainer.segments_per_step", 1)
            depth = run.settings.get("Trainer.bptt_depth")
            crossed = segments if depth is None else min(segments, depth + 1)
            tokens = run.settings["Trainer.segment_length"] * crossed
            depths.setdefault(tokens, Counter())[entry.ladder] += 1
    assert manual_table("gradients")[1:] == [
        [f"{tokens:,}", str(runs.total()), ", ".join(f"`{name}`" for name in sorted(runs))]
        for tokens, runs in sorted(depths.items())
    ]
    checksums = {}
    for run in runs_of(built, "files_windows", "files_confirmation", "files_time"):
        last = [r["data/ledger"] for r in run.records if "data/ledger" in r][-1]
        checksums.setdefault((run.settings["Trainer.steps"], run.seed), set()).add(f"`{last}`")
    assert manual_table("files_checksums")[1:] == [
        [f"{steps:,}", str(seed), *found] for (steps, seed), found in sorted(checksums.items())
    ]
    heads, *rows = manual_table("mqar_rates")
    for memory, *shares, _ in rows:
        for rate, share in zip(heads[1:], shares):
            rate = float(rate.removeprefix("rate "))
            known = [f"{accuracy(run):.2f}" for entry in built[1].entries for run in entry.runs
                     if entry.ladder == "mqar" and entry.memory == memory and run.seed == 0
                     and float(entry.fields["rate"]) == rate]  # fmt: skip
            assert share in known if share != "–" else not known, (memory, rate)


@pytest.mark.parametrize("ladder", ["zoology_64", "zoology_128"])
def test_zoologys_table_has_all_rates_and_the_test_of_the_best(built, ladder):
    found = {}
    for entry in built[1].entries:
        if entry.ladder == ladder:
            (run,) = entry.runs
            validation, test = (run.evaluations.get(split, {}) for split in ("validation", "test"))
            shares = found.setdefault((entry.memory, str(entry.fields["W"])), {})
            shares[entry.fields["rate"]] = validation["accuracy"], test.get("accuracy")
    heads, *rows = manual_table(ladder)
    assert {(memory, W) for memory, W, *_ in rows} == {*found}
    for memory, W, *shares, test in rows:
        known = found[memory, W]
        rates = [head.removeprefix("rate ") for head in heads[2:-1]]
        assert {*known} <= {*rates}
        assert shares == [f"{known[rate][0]:.4f}" if rate in known else "–" for rate in rates]
        _, best = max(known.values(), key=lambda pair: pair[0])
        assert test == ("–" if best is None else f"{best:.4f}")


def test_words_far_back_are_those_of_runs_over_eight_segments():
    """Words last seen 320 bytes or more before, weighted by bytes, and intervals over seeds."""
    sums = {}
    for line in csv.DictReader((FOLDER / "words_by_distance.csv").read_text().splitlines()):
        memory = "gated delta memory" if "GatedDelta" in line["run"] else "Rec, lstm gate"
        of = memory, line["run"][-2:], line["study"] == "compare-cleared", line["curve"]
        if int(line["distance"]) >= 320:
            bits, tokens = float(line["bits"]), int(line["tokens"])
            sums[of] = sums.get(of, np.zeros(2)) + np.array([bits * tokens, tokens])
    mean = {of: bits / tokens for of, (bits, tokens) in sums.items()}
    expected = []
    for memory in dict.fromkeys(of[0] for of in mean):
        seeds = sorted({of[1] for of in mean if of[0] == memory})
        kept, window, cleared = (
            np.array([mean[memory, seed, *study] for seed in seeds])
            for study in ((False, "run"), (False, "compared with"), (True, "compared with"))
        )
        columns = [*(kept, window), window - kept, cleared - kept]
        rows = zip(seeds, *([f"{x:.3f}" for x in column] for column in columns))
        expected += [[memory, *row] for row in rows]
        expected.append([memory, f"{seeds[0]} to {seeds[-1]}", *map(interval, columns)])
    assert sorted(manual_table("files_depth_words")[1:]) == sorted(expected)


def test_manual_tables_of_studies_agree(built):
    names = []
    for run in runs_of(built, "files_windows", "files_half_rate"):
        for study in studies(run, "compare"):
            curves = {s["name"]: s for s in study["series"]
                      if s["y_label"] == "bits per token of words" and "words" in s}  # fmt: skip
            if curves:
                own, other = curves["run"], curves["compared with"]
                names.append((own["x"], own["words"], np.subtract(other["y"], own["y"])))
    _, *rows = manual_table("files_names")
    columns = [[f"{value:.3f}" for value in gained] for _, _, gained in names]
    assert sorted(columns) == sorted([row[k] for row in rows[:8]] for k in (3, 4))
    assert [row[:2] for row in rows[:8]] == [[f"{x:,.0f}", f"{n:,}"] for x, n, _ in zip(*names[0])]
    uses = [study["numbers"] for run in runs_of(built) for study in studies(run, "memory_use")]
    costs = {tuple(f"{numbers[f'cost_{what}']:.3f} ± {numbers[f'cost_{what}_error']:.3f}"
                   for what in ("swapped", "cleared")) for numbers in uses
             if "cost_swapped" in numbers}  # fmt: skip
    assert {(row[1], row[2]) for row in manual_table("memory")[1:]} <= costs
    kinds = [study["numbers"] for run in runs_of(built) for study in studies(run, "compare")]
    keys = [f"{kind.replace(' ', '_')}_contribution_bits" for kind in KINDS]
    known = [[f"{numbers[key]:.3f}" for key in keys] for numbers in kinds if keys[0] in numbers]
    heads, *rows = manual_table("kinds")
    for column in range(1, len(heads)):
        assert [row[column] for row in rows[:-1]] in known, heads[column]
