"""The study of token differences finds what was planted: names, distances, the title at the end."""

import re
from collections import Counter

import numpy as np
import pytest
from fabricated_recordings import fabricate, make_store, planted_book

from brt.data.vocabularies.base import ByteVocabulary
from brt.evaluation.token_kinds import KINDS
from brt.evaluation.words import Words
from brt.studies.compare import DISTANCES, compare, describe, largest
from brt.studies.study import choose_documents

WINDOW, SEGMENT = 64, 512
BOOKS = [
    planted_book("Curgenven", "Baby Mine", 0),
    planted_book("Gomin", "Good Hope", 1, gaps=(30, 90, 2500, 130)),
    planted_book("Truus", "Brownie Book", 2, gaps=(600, 601, 602, 50)),
]


def remembers(book, reach, seed):
    """Nats of a reader that knows the book's names if they stood at most `reach` bytes ago.

    A name costs it by its first byte; the filler costs about the same whoever reads it.
    """
    nats = np.random.default_rng(seed).uniform(0.5, 1.5, len(book.text))
    first, second, distance = book.title
    known = {**book.planted, first: distance, second: distance}
    for rank, (position, ago) in enumerate(known.items()):
        nats[position] = 0.1 if ago <= reach else 12.0 + rank
    return nats


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("books") / "test", [book.text for book in BOOKS])


@pytest.fixture(scope="module")
def recordings(store, folder):
    sizes = {"window": WINDOW, "segment_length": SEGMENT}

    def make(name, reach):
        nats = [remembers(book, reach, 10 * n + reach % 7) for n, book in enumerate(BOOKS)]
        return fabricate(folder / name, store, nats, **sizes)

    return {"recurrent": make("recurrent", 10**9), "window": make("window", WINDOW)}


@pytest.fixture(scope="module")
def found(recordings, store):
    documents = range(len(BOOKS))
    return compare(*recordings.values(), store, ByteVocabulary(), documents)


def test_losses_by_kind_are_those_of_a_loop_over_the_text(found, recordings):
    sums, letters = {}, "".join(chr(c) for c in range(256) if chr(c).isalnum()) + "_"
    own, other = recordings.values()
    total = 0
    for number, book in enumerate(BOOKS):
        text, inside = book.text, False
        total += len(text)
        for token, letter in enumerate(text):
            joins = letter in "'’" and inside and text[token + 1 : token + 2].isalnum()
            in_word = letter in letters or joins
            kind = "other" if not letter.isspace() else "white_space"
            kind = "line_break" if letter == "\n" else kind
            if in_word:
                kind = "inside_a_word" if inside else "first_of_a_word"
            inside = in_word
            nats = [r.document(number).nats_T[token] for r in (own, other)]
            sums.setdefault(kind, []).append(nats)
    for kind, pairs in sums.items():
        bits, other_bits = np.mean(np.array(pairs, np.float64), 0) / np.log(2)
        numbers = [found["numbers"][f"{kind}_{what}"] for what in ("bits", "other_bits")]
        assert numbers == pytest.approx([bits, other_bits])
        assert found["numbers"][f"{kind}_tokens"] == len(pairs)
        adds = (other_bits - bits) * len(pairs) / total
        assert found["numbers"][f"{kind}_contribution_bits"] == pytest.approx(adds)
    assert {"first_of_a_word", "inside_a_word", "white_space"} <= sums.keys()


def test_losses_of_repeated_words_are_those_of_a_loop(found, recordings):
    sums, words = {name: {} for name in ("run", "compared with")}, Counter()
    for number, book in enumerate(BOOKS):
        seen = {}
        for match in re.finditer(r"\w+(?:'\w+)*", book.text):
            word = re.sub("'s$", "", match[0])
            last, seen[word] = seen.get(word), match.start()
            if last is None:
                continue
            at = max(edge for edge in DISTANCES if edge <= match.start() - last)
            words[at] += 1
            for name, recording in zip(sums, recordings.values()):
                nats = recording.document(number).nats_T[match.start() : match.end()]
                sums[name].setdefault(at, []).extend(nats / np.log(2))
    for name, expected in sums.items():
        (series,) = (s for s in found["series"] if s["name"] == name)
        assert series["x"] == sorted(expected)
        assert series["y"] == pytest.approx([np.mean(expected[at]) for at in series["x"]], abs=1e-5)
        assert series["words"] == [words[at] for at in series["x"]]
        assert series["tokens"] == [len(expected[at]) for at in series["x"]]
    assert len(series["x"]) > 4


def test_the_top_tokens_are_the_planted_names(found):
    for number, book in enumerate(BOOKS):
        first, second, distance = book.title
        planted = {position: ago for position, ago in book.planted.items() if ago > WINDOW}
        planted |= {first: distance, second: distance}
        top = [
            entry
            for entry in found["excerpts"]
            if entry["document"] == number and entry["direction"] == "better"
        ]
        assert len(top) == 4
        assert {entry["token"] for entry in top} <= planted.keys()
        for entry in top:
            assert entry["kind"] == "proper name"
            assert entry["last_seen"] == planted[entry["token"]]
            assert book.text.startswith(entry["word"], entry["token"])
            assert entry["text"] == entry["word"][0]
            assert entry["before"].endswith(book.text[entry["token"] - 20 : entry["token"]])
            assert entry["nats"] == pytest.approx(0.1)
            assert entry["other_nats"] >= 12


def test_the_title_at_the_end_is_flagged_and_nothing_else_is(found):
    flagged = {(e["document"], e["token"]) for e in found["excerpts"] if e["recalled"]}
    expected = {(n, position) for n, book in enumerate(BOOKS) for position in book.title[:2]}
    assert flagged == expected


@pytest.mark.parametrize("position", [3 * SEGMENT, 3 * SEGMENT + 200])
@pytest.mark.parametrize("ago", [*range(WINDOW, WINDOW + 3), *range(199, 204), 700, 1500])
def test_a_word_is_in_reach_to_the_token(position, ago):
    """The input at a position is the token before it; the window ends W tokens before that one."""
    text = "a" * (position - ago - 1) + " Gomin " + "b" * (ago - 7) + " Gomin "
    words = Words(ByteVocabulary(), np.frombuffer(text.encode(), np.uint8))
    found, inside = (describe(words, None, position + n, WINDOW, SEGMENT) for n in (0, 2))
    for entry in (found, inside):
        assert (entry.word, entry.last_seen) == ("Gomin", ago)
    if ago <= WINDOW + 1:
        assert found.where == "window"
    else:  # the word's first character is an input one position later than it is a target
        same = position - ago + 1 >= position // SEGMENT * SEGMENT
        assert found.where == ("segment" if same else "beyond")


def test_counts_are_those_of_the_entries(found):
    numbers = found["numbers"]
    better = [e for e in found["excerpts"] if e["direction"] == "better"]
    assert numbers["better_top4_of"] == len(better) == 12
    assert numbers["better_top4_proper_name"] == 12
    assert numbers["better_top4_outside_window"] == 12
    assert numbers["better_top4_recalled"] == sum(e["recalled"] for e in better) == 6
    for where in ("window", "segment", "beyond", "never"):
        assert numbers[f"better_top4_last_seen_{where}"] == sum(e["where"] == where for e in better)
    early = [e for e in better if e["token"] % SEGMENT < SEGMENT // 4]
    assert numbers["better_top4_first_quarter_of_segment"] == len(early) > 0
    distances = [e["last_seen"] for e in better]
    assert numbers["better_top4_recall_distance_largest"] == max(distances) > 2500
    assert numbers["better_top40_of"] > 12
    assert "12 of 12" in found["summary"]


def test_the_other_direction_exchanges_the_models(found, recordings, store):
    other_way = *reversed(recordings.values()), store, ByteVocabulary(), range(len(BOOKS))
    exchanged = compare(*other_way)
    for one, two in (("better", "worse"), ("worse", "better")):
        ours = [(e["document"], e["token"]) for e in found["excerpts"] if e["direction"] == one]
        theirs = [
            (e["document"], e["token"]) for e in exchanged["excerpts"] if e["direction"] == two
        ]
        assert ours == theirs
    ours, theirs = found["numbers"], exchanged["numbers"]
    assert ours["difference_bits"] == pytest.approx(-theirs["difference_bits"])
    assert ours["bits_per_token"] == pytest.approx(theirs["other_bits_per_token"])


def test_curves_hold_every_document_with_its_borders(found, recordings):
    for number, book in enumerate(BOOKS):
        curve = found["series"][number]
        own, other = (r.document(number).nats_T for r in recordings.values())
        assert np.allclose(curve["y"], (other - own)[curve["x"]] / np.log(2), atol=1e-4)
        assert curve["borders"] == list(range(SEGMENT, len(book.text), SEGMENT))
        assert int(np.argmax(other - own)) in curve["x"]


def test_numbers_are_of_all_documents_curves_of_the_drawn(found, recordings, store):
    some = compare(*recordings.values(), store, ByteVocabulary(), range(len(BOOKS)), [1])
    assert some["numbers"] == found["numbers"] and some["summary"] == found["summary"]
    assert {entry["document"] for entry in some["excerpts"]} == {1}
    every, first = len(BOOKS), found["series"][1]
    assert some["series"] == [first, *found["series"][every:]]


def test_documents_of_one_token_are_compared(tmp_path):
    books = [BOOKS[0]._replace(text="a"), BOOKS[0]._replace(text="b")]
    store = make_store(tmp_path / "test", [book.text for book in books])
    one, two = (
        fabricate(tmp_path / name, store, [np.array([x]), np.array([1.0])])
        for name, x in (("a", 0.5), ("b", 2.0))
    )
    found = compare(one, two, store, ByteVocabulary(), [0, 1])
    assert found["numbers"]["tokens"] == found["numbers"]["better_top40_of"] == 2
    assert found["excerpts"][0]["text"] == "a" and found["series"][0]["borders"] == []


def test_a_long_curve_keeps_its_spikes(store, tmp_path, monkeypatch):
    monkeypatch.setattr("brt.studies.compare.POINTS", 50)
    flat = [np.ones(len(book.text)) for book in BOOKS]
    spiked = [nats.copy() for nats in flat]
    spiked[1][[333, 1234]] = 9.0, -5.0
    one, two = (
        fabricate(tmp_path / name, store, nats) for name, nats in (("a", flat), ("b", spiked))
    )
    curve, *_ = compare(one, two, store, ByteVocabulary(), [1])["series"]
    assert len(curve["x"]) == 50
    points = dict(zip(curve["x"], curve["y"]))
    assert [points[333], points[1234]] == pytest.approx([8 / np.log(2), -6 / np.log(2)], abs=1e-3)


def test_only_tokens_that_the_corpus_scores_are_compared(store, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    weights = [rng.choice([0.0, 0.5, 2.0], len(book.text)).astype("f4") for book in BOOKS]
    monkeypatch.setattr(
        type(store), "weights", lambda _, d, *span: weights[d][slice(*span or [None])]
    )
    nats = [[rng.exponential(size=len(book.text)) for book in BOOKS] for _ in range(2)]
    for values in nats:
        for nats_T, weights_T in zip(values, weights):
            nats_T[weights_T == 0] = np.inf
    sizes = {"window": WINDOW, "segment_length": SEGMENT}
    one, two = (fabricate(tmp_path / n, store, x, **sizes) for n, x in zip("ab", nats))
    found = compare(one, two, store, ByteVocabulary(), range(len(BOOKS)))
    w, a, b = (np.concatenate(x) for x in (weights, *nats))
    chosen = w > 0
    bits, other_bits = (np.average(x[chosen], weights=w[chosen]) / np.log(2) for x in (a, b))
    numbers = found["numbers"]
    assert numbers["bits_per_token"] == pytest.approx(bits)
    assert numbers["other_bits_per_token"] == pytest.approx(other_bits)
    assert numbers["tokens"] == chosen.sum() < len(w)
    assert numbers["better_share"] == pytest.approx((b > a)[chosen].mean())
    kinds = [kind.replace(" ", "_") for kind in KINDS]
    contributions = [numbers[f"{kind}_contribution_bits"] for kind in kinds]
    assert sum(contributions) == pytest.approx(other_bits - bits)
    assert sum(numbers[f"{kind}_tokens"] for kind in kinds) == chosen.sum()
    for entry in found["excerpts"]:
        assert weights[entry["document"]][entry["token"]] > 0
    for curve, weights_T in zip(found["series"], weights):
        assert curve["x"] == np.flatnonzero(weights_T).tolist()


def test_one_token_of_a_word_is_enough(store):
    words = Words(ByteVocabulary(), store.tokens(0))
    position = next(iter(BOOKS[0].planted))
    values = np.zeros(len(BOOKS[0].text))
    values[position : position + 6] = [3, 9, 8, 7, 6, 5]
    values[position + 40] = 4
    first, second = largest(values, words, 2, values > 0)
    assert first == position + 1
    assert words.at(second) == words.at(position + 40)


def test_documents_are_drawn_by_the_seed_alone(store_of):
    store = store_of([5] * 40)
    drawn = [tuple(choose_documents(store, 5, seed)) for seed in range(20)]
    assert drawn == [tuple(choose_documents(store, 5, seed)) for seed in range(20)]
    assert len(set(drawn)) > 15 and all(len(set(d)) == 5 for d in drawn)
    assert choose_documents(store, 100) == list(range(40))
