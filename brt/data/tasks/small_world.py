"""Stories of a small simulated world, with a question, in the form of bAbI's tasks 1 to 5.

    qa1    Anna went to the kitchen.                                     Where is Anna?
    qa2    ... Anna took the apple. Anna went to the garden.             Where is the apple?
    qa3    ...                                     Where was the apple before the garden?
    qa4    The office is north of the kitchen.     What is north of the kitchen?
    qa5    Anna took the apple. Anna gave the apple to Ben.    Who gave the apple to Ben?

Where several events fit a question, the last one counts.

Source: Weston et al. 2015, arXiv:1502.05698 (bAbI), section 3.
"""

import itertools
from typing import NamedTuple

import numpy as np

from brt.checks import MOST

PEOPLE = ("Anna", "Ben", "Clara", "David")
ROOMS_OF_PEOPLE = ("kitchen", "garden", "office", "bedroom", "hallway", "bathroom")
THINGS = ("apple", "football", "milk", "book")
ROOMS = (*ROOMS_OF_PEOPLE, "attic", "cellar", "library", "pantry", "study", "garage")
ANSWERS = (*PEOPLE, *THINGS, *ROOMS)
MOVES = ("went to", "moved to", "walked to", "ran to")
TAKES = ("took", "picked up", "grabbed")
DROPS = ("dropped", "put down", "left")
GIVES = ("gave", "passed", "handed")
SIDES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
ATTEMPTS = 10_000


class Story(NamedTuple):
    """A story.

    facts: sentences, in order.
    answer: one word.
    support: indices of the facts that determine the answer, rising.
    """

    facts: list[str]
    question: str
    answer: str
    support: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Returns how many other people, things or rooms the facts name after the answer."""
        (kind,) = (words for words in (PEOPLE, THINGS, ROOMS) if self.answer in words)
        named = (word for fact in reversed(self.facts) for word in reversed(fact[:-1].split()))
        return list(dict.fromkeys(word for word in named if word in kind)).index(self.answer)


class Stay(NamedTuple):
    room: str
    support: tuple[int, ...]


class World:
    """People who walk through rooms, and take, drop and give things.

    Attributes:
        facts: sentences so far.
        moved: index of the last move of each person who has moved.
        trace: stays of each thing, as far as facts tell.
        now: the facts that tell where a thing is now.
    """

    def __init__(self, random: np.random.Generator):
        self._random = random
        self.facts: list[str] = []
        self.at = {person: self._one(ROOMS_OF_PEOPLE) for person in PEOPLE}
        self.moved: dict[str, int] = {}
        self.trace: dict[str, list[Stay]] = {thing: [] for thing in THINGS}
        self.now: dict[str, tuple[int, ...]] = {}
        self.givings: list[tuple[str, str, str, int]] = []  # giver, thing, receiver, fact
        self._holder: dict[str, str] = {}
        self._held_since: dict[str, int] = {}
        self._left: dict[str, str] = {}

    def act(self, kinds: tuple[str, ...]) -> None:
        events = {kind: getattr(self, f"_possible_{kind}")() for kind in kinds}
        kind, *others = (kind for kind in kinds if events[kind])
        if others and self._random.random() < 0.5:
            kind = self._one(others)
        getattr(self, f"_{kind}")(*self._one(events[kind]))

    def _possible_move(self):
        return [(p, room) for p in PEOPLE for room in ROOMS_OF_PEOPLE if room != self.at[p]]

    def _move(self, person, room):
        self.at[person] = room
        self.moved[person] = self._say(f"{person} {self._one(MOVES)} the {room}.")
        for thing, holder in self._holder.items():
            if holder == person:
                self.now[thing] = self._held_since[thing], self.moved[person]
                self.trace[thing].append(Stay(room, self.now[thing]))

    def _possible_take(self):
        free = [thing for thing in THINGS if thing not in self._holder]
        return [(p, t) for p in PEOPLE for t in free if self._left.get(t, self.at[p]) == self.at[p]]

    def _take(self, person, thing):
        fact = self._say(f"{person} {self._one(TAKES)} the {thing}.")
        self._holder[thing], self._held_since[thing] = person, fact
        if person in self.moved:
            self.now[thing] = (self.moved[person], fact)
            if not self.trace[thing]:
                self.trace[thing].append(Stay(self.at[person], self.now[thing]))

    def _possible_drop(self):
        return [(person, thing) for thing, person in self._holder.items()]

    def _drop(self, person, thing):
        fact = self._say(f"{person} {self._one(DROPS)} the {thing}.")
        del self._holder[thing]
        self._left[thing] = self.at[person]
        if person in self.moved:
            self.now[thing] = (self.moved[person], fact)

    def _possible_give(self):
        return [
            (person, thing, other)
            for thing, person in self._holder.items()
            for other in PEOPLE
            if other != person and self.at[other] == self.at[person]
        ]

    def _give(self, person, thing, other):
        fact = self._say(f"{person} {self._one(GIVES)} the {thing} to {other}.")
        self._holder[thing], self._held_since[thing] = other, fact
        self.givings.append((person, thing, other, fact))

    def _say(self, sentence) -> int:
        self.facts.append(sentence)
        return len(self.facts) - 1

    def _one(self, choices):
        return choices[int(self._random.integers(len(choices)))]


def story(task: str, num_facts: int, random: np.random.Generator, bound: bool = False) -> Story:
    """Draws a story.

    bound: for qa1, as many people as possible move and end in different rooms, and the question is
        about one who did not move last. With three or four facts each of the other rooms is right
        equally often.
    """
    for _ in range(ATTEMPTS):
        facts, questions = (_layout if task == "qa4" else _events)(task, num_facts, random)
        if bound:
            rooms = {answer for _, answer, _ in questions}
            if len(rooms) < min(num_facts, len(PEOPLE)):
                continue
            questions = [each for each in questions if each[2] != (num_facts - 1,)]
        if questions:
            question, answer, support = questions[int(random.integers(len(questions)))]
            return Story(facts, question, answer, tuple(sorted(set(support))))
    raise ValueError(f"No story of {task} with {num_facts} facts in {ATTEMPTS} attempts.")


def _events(task: str, num_facts: int, random: np.random.Generator):
    kinds, ask = TASKS[task]
    world = World(random)
    for _ in range(num_facts):
        world.act(kinds)
    return world.facts, ask(world)


def _where_is_person(world: World):
    return [(f"Where is {p}?", world.at[p], (fact,)) for p, fact in world.moved.items()]


def _where_is_thing(world: World):
    return [
        (f"Where is the {thing}?", world.trace[thing][-1].room, support)
        for thing, support in world.now.items()
    ]


def _where_was_thing(world: World):
    return [
        (f"Where was the {t} before the {now.room}?", before.room, before.support + now.support)
        for t, trace in world.trace.items()
        for before, now in itertools.pairwise(trace)
        if [stay.room for stay in trace].count(now.room) == 1
    ]


def _who_gave_what(world: World):
    patterns: dict[str, tuple[str, int]] = {}
    for giver, thing, receiver, fact in world.givings:  # later ones replace earlier ones
        patterns |= {
            f"Who gave the {thing} to {receiver}?": (giver, fact),
            f"Who gave the {thing}?": (giver, fact),
            f"What did {giver} give to {receiver}?": (thing, fact),
            f"Who did {giver} give the {thing} to?": (receiver, fact),
            f"Who received the {thing}?": (receiver, fact),
        }
    return [(question, answer, (fact,)) for question, (answer, fact) in patterns.items()]


TASKS = {
    "qa1": (("move",), _where_is_person),
    "qa2": (("move", "take", "drop"), _where_is_thing),
    "qa3": (("move", "take", "drop"), _where_was_thing),
    "qa5": (("move", "take", "give", "drop"), _who_gave_what),
}
FACTS = {task: range(least, MOST + 1) for task, least in (("qa1", 1), ("qa2", 2), ("qa3", 3))}
FACTS |= {"qa4": range(1, len(ROOMS)), "qa5": range(2, MOST + 1)}
"""Numbers of facts that a story of each task can have."""


def _layout(task: str, num_facts: int, random: np.random.Generator):
    rooms = [ROOMS[i] for i in random.permutation(len(ROOMS))[: num_facts + 1]]
    cells = {rooms[0]: (0, 0)}
    facts, questions = [], []
    for room in rooms[1:]:
        free = [
            (old, side, cell)
            for old, (x, y) in cells.items()
            for side, (dx, dy) in SIDES.items()
            if (cell := (x + dx, y + dy)) not in cells.values()
        ]
        old, side, cells[room] = free[int(random.integers(len(free)))]
        first, way, second = room, side, old
        if random.random() < 0.5:
            first, way, second = old, OPPOSITE[side], room
        facts.append(f"The {first} is {way} of the {second}.")
        fact = (len(facts) - 1,)
        questions.append((f"What is {way} of the {second}?", first, fact))
        questions.append((f"What is the {first} {way} of?", second, fact))
    order = random.permutation(num_facts).tolist()
    told = [(question, answer, (order.index(i),)) for question, answer, (i,) in questions]
    return [facts[i] for i in order], told
