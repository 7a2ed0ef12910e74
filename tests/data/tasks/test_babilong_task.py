"""Stories of the small world and their hiding in text, against a reader of the sentences."""

import os
import re

import numpy as np
import pytest
from apart import run
from paths import SCRIPTS
from stores import Texts

from brt.data.corpus import Corpus
from brt.data.tasks import babilong
from brt.data.tasks.babilong import BabiLong
from brt.data.tasks.small_world import FACTS, OPPOSITE, PEOPLE, ROOMS, THINGS, story
from brt.data.vocabularies.base import ByteVocabulary

MOVE = re.compile(r"(\w+) (?:went|moved|walked|ran) to the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:took|picked up|grabbed) the (\w+)\.")
DROP = re.compile(r"(\w+) (?:dropped|put down|left) the (\w+)\.")
GIVE = re.compile(r"(\w+) (?:gave|passed|handed) the (\w+) to (\w+)\.")
SIDE = re.compile(r"The (\w+) is (\w+) of the (\w+)\.")
FACT = re.compile("|".join(f"(?:{p.pattern})" for p in (MOVE, TAKE, DROP, GIVE, SIDE)))


def answer_to(facts, question):
    """Answers a question from the sentences alone; None if they do not tell."""
    at, holder, been, gifts, beside = {}, {}, {}, [], {}
    for fact in facts:
        if found := MOVE.fullmatch(fact):
            person, location = found.groups()
            at[person] = location
            for thing in [t for t, p in holder.items() if p == person]:
                been.setdefault(thing, []).append(location)
        elif found := TAKE.fullmatch(fact):
            person, thing = found.groups()
            assert thing not in holder
            holder[thing] = person
            locations = been.setdefault(thing, [])
            if person in at:
                assert not locations or locations[-1] == at[person]
                locations[:] = locations or [at[person]]
        elif found := DROP.fullmatch(fact):
            assert holder.pop(found[2]) == found[1]
        elif found := GIVE.fullmatch(fact):
            assert holder[found[2]] == found[1]
            assert len({at.get(found[1]), at.get(found[3])} - {None}) < 2  # in one room
            holder[found[2]] = found[3]
            gifts.append(found.groups())
        else:
            one, side, other = SIDE.fullmatch(fact).groups()
            beside[side, other] = one
            beside[OPPOSITE[side], one] = other
    if found := re.fullmatch(r"Where is (\w+)\?", question):
        return at.get(found[1])
    if found := re.fullmatch(r"Where is the (\w+)\?", question):
        return been[found[1]][-1]
    if found := re.fullmatch(r"Where was the (\w+) before the (\w+)\?", question):
        locations = been[found[1]]
        assert locations.count(found[2]) == 1
        return locations[locations.index(found[2]) - 1]
    if found := re.fullmatch(r"What is (\w+) of the (\w+)\?", question):
        return beside.get((found[1], found[2]))
    if found := re.fullmatch(r"What is the (\w+) (\w+) of\?", question):
        return beside.get((OPPOSITE[found[2]], found[1]))
    for pattern, known, wanted in (
        (r"Who gave the (\w+) to (\w+)\?", (1, 2), 0),
        (r"Who gave the (\w+)\?", (1,), 0),
        (r"What did (\w+) give to (\w+)\?", (0, 2), 1),
        (r"Who did (\w+) give the (\w+) to\?", (0, 1), 2),
        (r"Who received the (\w+)\?", (1,), 2),
    ):
        if found := re.fullmatch(pattern, question):
            fits = [g for g in gifts if tuple(g[i] for i in known) == found.groups()]
            return fits[-1][wanted] if fits else None
    raise AssertionError(question)


@pytest.mark.parametrize("task", FACTS)
@pytest.mark.parametrize("more", [0, 1, 4, 10])
def test_a_reader_of_the_facts_finds_the_answer(task, more):
    random = np.random.default_rng(more)
    answers = set()
    for _ in range(40):
        tale = story(task, FACTS[task][0] + more, random)
        assert len(tale.facts) == FACTS[task][0] + more
        assert answer_to(tale.facts, tale.question) == tale.answer
        answers.add(tale.answer)
        assert list(tale.support) == sorted(set(tale.support))
        assert len(tale.support) in {"qa2": (2,), "qa3": (2, 3, 4)}.get(task, (1,))
    assert len(answers) > 3


def order(words, facts):
    """The words that the facts name, the last first."""
    text = " ".join(facts)
    return sorted((word for word in words if word in text), key=text.rfind, reverse=True)


@pytest.mark.parametrize("task", FACTS)
def test_the_rank_of_an_answer_counts_the_words_named_after_it(task):
    random = np.random.default_rng(3)
    for _ in range(60):
        tale = story(task, FACTS[task][1] + 1, random)
        (kind,) = (words for words in (PEOPLE, THINGS, ROOMS) if tale.answer in words)
        assert order(kind, tale.facts)[tale.rank] == tale.answer


@pytest.mark.parametrize("facts, most", [(3, 0.5), (4, 1 / 3), (8, 0.45)])
def test_no_order_of_rooms_answers_a_bound_story(facts, most):
    random, count = np.random.default_rng(facts), 400
    ranks = np.zeros(len(ROOMS))
    for _ in range(count):
        tale = story("qa1", facts, random, bound=True)
        assert answer_to(tale.facts, tale.question) == tale.answer
        ranks[tale.rank] += 1
        people = order(PEOPLE, tale.facts)
        assert people[0] not in tale.question and len(people) == min(facts, 4)
        ends = {answer_to(tale.facts, f"Where is {person}?") for person in people}
        assert len(ends) == len(people)
    assert ranks[0] == 0 and ranks.max() / count < most + 3 * (most * (1 - most) / count) ** 0.5


@pytest.mark.parametrize("task", ["qa1", "qa2", "qa4"])
def test_the_answer_changes_or_is_lost_without_a_supporting_fact(task):
    random, lost = np.random.default_rng(1), 0
    for _ in range(60):
        tale = story(task, 6, random)
        try:
            without = [f for n, f in enumerate(tale.facts) if n != tale.support[-1]]
            lost += answer_to(without, tale.question) != tale.answer
        except (AssertionError, KeyError, IndexError):
            lost += 1
    assert lost > 40  # the rest was so before


class Utf16(ByteVocabulary):
    fingerprint = "utf-16"


class Spaceless(ByteVocabulary):
    def encode(self, data, title):
        return super().encode(data.replace(b" ", b""), title)


@pytest.fixture(scope="module")
def background(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("lines"))
    for split in ("train", "test"):
        lines = ([f"Line {split} {n} {i} says nothing new." for i in range(60)] for n in range(4))
        source = Texts(**{split: [" ".join(text).encode() for text in lines]})
        Corpus(folder, source, "bytes").prepare(split, quiet=True)
    return f"{folder}/{{split}}"


@pytest.mark.parametrize("task", FACTS)
def test_facts_stand_in_order_and_answers_begin_at_one_place(background, task, monkeypatch):
    tales = []
    monkeypatch.setattr(babilong, "story", lambda *of: tales.append(story(*of)) or tales[-1])
    source = BabiLong(
        background=background, task=task, num_held_out=8, lengths=(700, 5000), num_facts=(4, 7)
    )
    for number, document in enumerate(source.documents("test")):
        length, facts = source.cell(number)
        text = document.tokens.astype(np.uint8).tobytes().decode()
        assert len(text) <= length
        context, question = text.split("\nQuestion: ")
        found = list(FACT.finditer(context))
        question, answer = question.split("\nAnswer: ")
        sentences = [match[0] for match in found]
        assert len(sentences) == facts == document.annotation["facts"]
        assert answer_to(sentences, question) == answer.removesuffix(".")
        ((start, stop, needed, _),) = document.annotation["answers"]
        assert text[start:stop] == f" {answer[:-1]}" and stop == len(text) - 1
        assert start == length - len(" bathroom.")  # whatever the answer: one of the longest
        assert needed == found[tales[number].support[0]].end()
        rest = FACT.sub("", context)
        assert len(re.findall(r"Line test \d \d+ says nothing new\.", rest)) > 5
        assert "train" not in rest


def test_stories_follow_from_the_seed_and_are_spread(background):
    def made(**change):
        settings = {"num_held_out": 200, "lengths": 1500, "num_facts": 1} | change
        return list(BabiLong(background=background, **settings).documents("test"))

    first = made()
    assert [d.tokens.tolist() for d in first] == [d.tokens.tolist() for d in made()]
    assert first[0].tokens.tolist() != made(seed=1)[0].tokens.tolist()
    depths = [d.annotation["answers"][0][2] / 1500 for d in first]
    assert np.histogram(depths, 5, (0, 1))[0].min() > 20


def test_a_text_is_filled_without_a_token_for_spaces(background, monkeypatch):
    sentences = [np.full(30, ord("x"), np.int32)] * 100  # more than there is room for
    monkeypatch.setattr(BabiLong, "_sentences", lambda *_: iter(sentences))
    source = BabiLong(background=background, vocabulary=Spaceless(), lengths=999, num_held_out=4)
    starts = [d.annotation["answers"][0][0] for d in source.documents("test")]
    assert starts == [999 - len("bathroom.")] * 4


def test_what_cannot_be_told_is_refused(background):
    for task, facts in (("qa3", 2), ("qa5", 1), ("qa4", 12)):
        with pytest.raises(ValueError, match="num_facts"):
            BabiLong(background=background, task=task, num_facts=facts)
    with pytest.raises(ValueError, match="from 3 to"):
        BabiLong(background=background, num_facts=2, bound=True)
    with pytest.raises(ValueError, match="bound"):
        BabiLong(background=background, task="qa2", bound=True)
    with pytest.raises(ValueError, match="lengths = 90"):
        next(BabiLong(background=background, lengths=90).documents("test"))
    with pytest.raises(FileNotFoundError, match="validation"):
        next(BabiLong(background=background).documents("validation"))
    with pytest.raises(ValueError, match=r"BabiLong\.vocabulary"):
        next(BabiLong(background=background, vocabulary=Utf16()).documents("test"))


def test_the_curriculum_adds_one_length_at_each_stage(tmp_path):
    shim = tmp_path / "python"
    shim.write_text('#!/bin/sh\necho "$@"\n')
    shim.chmod(0o755)
    settings = {"TASK": "qa2", "STEPS": "30", "LENGTHS": "512 1024"}
    line = ("bash", SCRIPTS / "babilong_curriculum.sh", "model.gin", "run", "--seed=3")
    first, second = run(*line, **settings, PATH=f"{tmp_path}:{os.environ['PATH']}").splitlines()
    assert "Trainer.steps=30 " in first and "Trainer.steps=60 " in second
    assert "lengths=(512, )" in first and "lengths=(512, 1024, )" in second
    assert "store='stores/babilong_qa2_512'" in first
    assert "store='stores/babilong_qa2_512_1024'" in second
    for stage in (first, second):
        assert "task='qa2'" in stage and "--workdir=run" in stage and stage.endswith("--seed=3")
