"""Entries of a sweep are the paper's experiments, made smaller alike, on one corpus and budget."""

import pytest
from fabricated_runs import DIMENSIONS, ROOT, make_entry_run
from gin_settings import read_gin_files

from brt import config
from brt.experiment import Experiment
from brt.reporting.collect import collect
from brt.reporting.gin_text import resolved, write_gin
from brt.reporting.runs import open_runs
from brt.sweeps.entries import combinations, read_sweep
from brt.sweeps.labels import short_labels
from brt.sweeps.scales import SCALES, SweepError

SWEEPS = sorted((ROOT / "configs" / "sweeps").glob("*.txt"))


def entries_of(path, scale="small", corpus="configs/corpora/text.gin", bindings=(), **options):
    return read_sweep(path, SCALES[scale], corpus, bindings, 10_000, **options)


def a_file(folder, *lines):
    (folder / "sweep.txt").write_text("\n".join(lines))
    return folder / "sweep.txt"


OF_PRETRAINED = (
    *("arpt_rates", "arpt_tables", "arpt_windows"),
    *("pretrained_marked", "pretrained_recall", "pretrained_small"),
)
"""Sweeps of pretrained bodies: no scale divides them, and each entry names its texts."""


@pytest.mark.parametrize(
    "path",
    [path for path in SWEEPS if not path.stem.startswith("rmt_")],
    ids=lambda path: path.stem,
)
def test_entries_of_a_sweep_differ_and_share_a_budget(path):
    corpus = (
        None
        if path.stem
        in ("gate_biases", "recurrent_layers", "table_4", "table_5", "txl_results", *OF_PRETRAINED)
        else "configs/corpora/text.gin"
    )
    scale = "paper" if corpus is None else "small"
    entries = entries_of(path, scale, corpus)
    assert len({write_gin(entry.settings) for entry in entries}) == len(entries)
    # One budget for all, and twice as much for the models that were trained twice as long.
    usual = [r for r in entries if "Trainer.steps" not in r.name]
    for some in (entries, usual):
        names = ["tokens_per_step", "steps"] if some is usual else ["tokens_per_step"]
        if path.stem in OF_PRETRAINED:
            # An overlap takes tokens of a window, and memories of a body are given the same steps.
            names = ["steps"]
        assert len({tuple(r.settings[f"Trainer.{name}"] for name in names) for r in some}) == 1


def test_the_small_standard_model_is_the_repositorys(tmp_path):
    (entry,) = entries_of(a_file(tmp_path, "pg19_rec_fixed_skip.gin"))
    files = [ROOT / f"configs/{name}.gin" for name in ("small/rec_fixed_skip", "corpora/text")]
    small = resolved(read_gin_files(files))
    for name, value in small.items():
        if (
            name.startswith(("BlockRecurrentTransformer.", "RecurrentCell."))
            and "dropout" not in name
            and "vocabulary" not in name
        ):
            assert entry.settings[name] == value, name
    assert entry.settings["Trainer.segment_length"] == small["Trainer.segment_length"]
    assert entry.paper["settings"]["BlockRecurrentTransformer.window"] == 512


RELATIVE = """
Trainer.model = @RecurrentMemoryTransformer
TransformerXL.vocabulary_size = 267735
TransformerXL.num_layers = 16
TransformerXL.width = 410
TransformerXL.num_heads = 10
TransformerXL.head_size = 41
TransformerXL.feed_forward_size = 2100
TransformerXL.memory_length = 75
TransformerXL.cutoffs = (200, 20000, 40000)
RecurrentMemoryTransformer.num_memory = 5
Trainer.corpus = @Corpus()
Corpus.source = @WikiText103()
Corpus.store = "stores/wikitext103"
Corpus.vocabulary = "words:vocabularies/wikitext103.txt"
WikiText103.path = "data/wikitext-103"
Trainer.stream = "contiguous"
Trainer.optimizer = @adamw
Trainer.schedule = @cosine
Trainer.steps = 200_000
Trainer.segment_length = 150
Trainer.segments_per_step = 4
Trainer.tokens_per_step = 36_000
Trainer.bptt_depth = 3
"""


def test_a_small_recurrent_memory_model_keeps_its_lengths(tmp_path):
    (tmp_path / "relative.gin").write_text(RELATIVE)
    path = a_file(tmp_path, "relative.gin", "relative.gin Trainer.steps=400_000")
    one, twice = entries_of(path)
    kept = ("segment_length", "segments_per_step", "tokens_per_step", "bptt_depth")
    assert [one.settings[f"Trainer.{name}"] for name in kept] == [150, 4, 36_000, 3]
    assert one.settings["RecurrentMemoryTransformer.num_memory"] == 5
    sizes = [one.settings[f"TransformerXL.{name}"] for name in DIMENSIONS]
    assert sizes == [5, 52, 5, 12, 264] and one.settings["TransformerXL.vocabulary_size"] == 256
    assert one.settings["TransformerXL.cutoffs"] == (200,)
    many = read_sweep(path, SCALES["small"], "configs/corpora/text.gin", [], 36e7)
    assert [entry.settings["Trainer.steps"] for entry in many] == [10_000, 20_000]
    (group,) = collect(open_runs([make_entry_run(tmp_path / "run", twice)]))
    position = group.position
    assert (position.system, position.size, position.steps) == ("Tr-XL + RMT", "151M", 400_000)
    config.parse([], [write_gin(one.settings)])
    Experiment.from_gin()


def test_a_memory_and_what_it_finds_shrink_as_lengths_do(tmp_path):
    (entry,) = entries_of(a_file(tmp_path, "pg19_memorizing_64k.gin"))
    names = ("BlockRecurrentTransformer.memorizing_layers", "BlockRecurrentTransformer.window")
    names += ("ExternalMemory.size", "ExternalMemory.neighbours")
    assert [entry.settings[name] for name in names] == [(2,), 64, 8192, 16]
    assert [entry.paper["settings"][name] for name in names] == [(8,), 512, 65_536, 128]


def test_the_short_scale_is_six_layers_with_windows_of_eight():
    path = ROOT / "configs/sweeps/table_1.txt"
    model = "BlockRecurrentTransformer"
    divisors = {f"{model}.width": 16, f"{model}.num_heads": 2, f"{model}.head_size": 8}
    divisors |= {f"{model}.feed_forward_size": 16, f"{model}.window": 64}
    lengths = "RecurrentCell.num_states", "ExternalMemory.size", "ExternalMemory.neighbours"
    divisors |= dict.fromkeys((*lengths, "Trainer.segment_length"), 64)
    by_hand = {f"{model}.num_layers": {12: 6, 13: 7}, f"{model}.recurrent_layers": {(9,): (4,)}}
    by_hand[f"{model}.memorizing_layers"] = {(8,): (3,)}
    for paper, short in zip(entries_of(path, "paper"), entries_of(path, "short"), strict=True):
        for name, divisor in divisors.items():
            if name in paper.settings:
                assert short.settings[name] * divisor == paper.settings[name], name
        for name, expected in by_hand.items():
            if paper.settings.get(name):
                assert short.settings[name] == expected[paper.settings[name]], name
        assert short.paper["settings"] == paper.paper["settings"]


def test_bindings_of_a_entry_and_of_the_command_are_in_force(tmp_path):
    file = a_file(tmp_path, "pg19_rec_fixed_skip.gin RecurrentCell.num_states=128  # fewer")
    bindings = ['TextFiles.path = "books/{split}"', "Trainer.log_every = 7"]
    (entry,) = entries_of(file, bindings=bindings)
    assert entry.settings["RecurrentCell.num_states"] == 16
    assert entry.paper["settings"]["RecurrentCell.num_states"] == 128
    assert entry.settings["TextFiles.path"] == "books/{split}"
    assert entry.settings["Trainer.log_every"] == 7
    assert entry.name == "pg19_rec_fixed_skip-RecurrentCell.num_states_128"


def test_layers_counted_from_the_last_keep_their_depth(tmp_path):
    layers = "pg19_rec_fixed_skip.gin BlockRecurrentTransformer.recurrent_layers"
    entries = entries_of(a_file(tmp_path, f"{layers}=(-12,-3)", f"{layers}=(0,9)"))
    for entry in entries:
        assert entry.settings["BlockRecurrentTransformer.recurrent_layers"] == (0, 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# nothing"], "sweep.txt"),
        (["pg19_slide_12l.gin"] * 2, "pg19_slide_12l"),
        (["systems/slide_12l.gin+arxiv.gin"], "arxiv.gin"),
        (["pg19_slide_12l.gin BlockRecurrentTransformer.window=100"], "window = 100"),
        (
            ["pg19_rec_fixed_skip.gin BlockRecurrentTransformer.recurrent_layers=(8,9)"],
            "recurrent_layers",
        ),
        (["short/rmt.gin"], "TransformerXL.width = 64"),
        (["small/lstm.gin"], "LSTM"),
        (["pg19_slide_12l.gin BlockRecurrentTransformer.window = 64"], "window = 64"),
        (["pg19_slide_12l.gin Trainer.seed=1 Trainer.seed=2"], "Trainer.seed"),
    ],
)
def test_a_sweep_that_cannot_be_run_says_why(tmp_path, lines, message):
    with pytest.raises(SweepError, match=message):
        entries_of(a_file(tmp_path, *lines))


def test_commas_inside_brackets_and_quotes_separate_no_values():
    line = """a.gin M.memories=((@A,(0,1)),),() M.gate=fixed,lstm M.name='x,y'"""
    assert combinations(line) == [
        f"""a.gin M.memories={memories} M.gate="{gate}" M.name='x,y'"""
        for memories in ("((@A,(0,1)),)", "()")
        for gate in ("fixed", "lstm")
    ]
    assert combinations("a.gin M.gate=fixed M.remat=True") == ['a.gin M.gate="fixed" M.remat=True']


@pytest.mark.parametrize(
    ("bound", "tokens", "expected"),
    [
        ((), 10_000, 1),  # of 10 steps
        ((), 1_024_000, 100),  # of 1,000, as many as the ramp has
        ((), 1_025_000, None),
        (("rsqrt.warmup_steps = 3",), 10_000, 3),
        (("rsqrt.warmup_steps = 5_000",), 10_000, 5_000),
    ],
)
def test_a_warm_up_ends_before_the_run_does(tmp_path, bound, tokens, expected):
    file = a_file(tmp_path, "pg19_slide_12l.gin")
    scale = SCALES["small"]
    (entry,) = read_sweep(file, scale, "configs/corpora/text.gin", bound, tokens, 1024)
    assert entry.settings["Trainer.steps"] == -(-tokens // 1024)
    assert entry.settings.get("rsqrt.warmup_steps") == expected
    assert ("rsqrt.warmup_steps" in "".join(entry.notes)) == (not bound and expected is not None)


@pytest.mark.parametrize(
    ("published", "bound", "times"),
    [
        ("Trainer.steps = %NUM\nNUM = 100", "", 1),
        ("Trainer.steps = %NUM\nNUM = 100", "NUM=300", 3),
        ("Trainer.steps = 100", "Trainer.steps=300", 3),
        ("", "Trainer.steps=300", 1),
    ],
)
def test_an_entry_of_more_steps_is_trained_on_more_tokens(tmp_path, published, bound, times):
    (tmp_path / "own.gin").write_text(RELATIVE.replace("Trainer.steps = 200_000", published))
    (entry,) = entries_of(a_file(tmp_path, f"own.gin {bound}"), tokens_per_step=100)
    assert entry.settings["Trainer.steps"] == 100 * times


def test_a_budget_is_given_in_tokens_or_in_steps(tmp_path):
    with pytest.raises(SweepError, match=r"Trainer.steps"):
        entries_of(a_file(tmp_path, "pg19_slide_12l.gin"), bindings=["Trainer.steps = 7"])


@pytest.mark.parametrize("scale", ["small", "short", "tiny"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Trainer.tokens_per_step", 512),
        ("Trainer.segment_length", 256),
        ("BlockRecurrentTransformer.window", 64),
        ("BlockRecurrentTransformer.num_layers", 3),
        ("RecurrentCell.num_states", 8),
        ("Evaluation.tokens_per_step", 640),
        ("Evaluation.segment_length", 128),
        ("Trainer.eval_every", 3),
        ("CheckpointPolicy.every", 7),
        ("Trainer.segments_per_step", 2),
    ],
)
def test_no_scale_divides_a_binding_of_the_command(tmp_path, scale, name, value):
    file = a_file(tmp_path, "pg19_rec_fixed_skip.gin", "pg19_slide_13l.gin")
    entries = entries_of(file, scale, bindings=[f"{name} = {value}"])
    for settings in (entry.settings for entry in entries):
        assert settings[name] == value
        size = settings["Trainer.tokens_per_step"]
        assert settings["Trainer.steps"] == -(-10_000 // size)
    assert entries[0].paper["settings"].get(name) != value


def test_no_scale_divides_what_a_macro_of_the_command_binds(tmp_path):
    lines = "Trainer.segment_length = %length\nTrainer.tokens_per_step = %size\n"
    head = 'include "configs/pg19_rec_fixed_skip.gin"\n'
    (tmp_path / "own.gin").write_text(f"{head}length = 4096\nsize = 131072\n{lines}")
    (entry,) = entries_of(a_file(tmp_path, "own.gin"), bindings=["length = 64", "size = 512"])
    assert entry.settings["Trainer.segment_length"] == 64
    assert entry.settings["Trainer.tokens_per_step"] == 512
    assert entry.settings["Trainer.steps"] == 20


def a_grid(bindings, *common, scale="small", **options):
    line = f"pg19_rec_fixed_skip.gin {bindings}"
    return entries_of("--grid", scale, bindings=common, lines=[line], **options)


def test_a_grid_of_batch_sizes_has_one_budget():
    entries = a_grid("Trainer.tokens_per_step=4096,8192")
    found = [[e.settings[f"Trainer.{n}"] for n in ("tokens_per_step", "steps")] for e in entries]
    assert found == [[512, 20], [1024, 10]]


def test_settings_of_an_entry_stay_where_a_budget_sets_them(tmp_path):
    file = a_file(tmp_path, "pg19_slide_12l.gin Trainer.eval_every=3 CheckpointPolicy.every=4")
    (entry,) = entries_of(file)
    assert entry.settings["Trainer.eval_every"] == 3
    assert entry.settings["CheckpointPolicy.every"] == 4


def test_a_batch_size_is_given_once():
    with pytest.raises(SweepError, match="--tokens_per_step"):
        a_grid("RecurrentCell.gate=lstm", "Trainer.tokens_per_step = 512", tokens_per_step=256)


NONE = "BlockRecurrentTransformer.recurrent_layers=()"


def test_an_empty_value_is_seen_in_the_name_of_a_run():
    plain, recurrent = (entry.name for entry in a_grid(f"{NONE},(8,)"))
    assert not plain.endswith("recurrent_layers") and recurrent.endswith("recurrent_layers_8")


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        (
            ["a.gin M.gate=fixed M.size=1", "a.gin M.gate=lstm M.size=1"],
            ["gate=fixed", "gate=lstm"],
        ),
        (["a.gin", "a.gin M.layers=()"], ["as configured", "layers=()"]),
        (["a.gin M.size=1 N.size=2", "a.gin"], ["M.size=1, N.size=2", "as configured"]),
        (["s/a.gin+c.gin", "s/b.gin+c.gin M.x=1"], ["s/a", "s/b, x=1"]),
        (["a.gin Evaluation.length=3", "a.gin"], ["Evaluation.length=3", "as configured"]),
        (["a.gin M.x='y'"], ["a, x=y"]),
    ],
)
def test_labels_hide_what_all_entries_share(lines, labels):
    assert short_labels([(line.split()[0], line.split()[1:]) for line in lines]) == labels


def test_lists_and_corpora_of_brt_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("configs/sweeps/recurrent_layers.txt", "sweeps/recurrent_layers.txt"):
        entries = entries_of(name, "short", corpus="configs/corpora/text.gin")
        assert len(entries) == 5 and entries[0].settings["TextFiles.path"] == "text/{split}"
    with pytest.raises(SweepError, match=r"sweeps/none\.txt"):
        entries_of("sweeps/none.txt")
