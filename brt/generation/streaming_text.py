"""Text of a stream of tokens, in whole characters, and where it stops."""

import itertools
from collections.abc import Iterable, Sequence

from brt.data.vocabularies.base import Vocabulary

UNSURE = "\ufffd"

MOST_UNSURE = 3

CONTEXT = 32
"""Tokens decoded again with each new one."""


class StreamingText:
    """The text of a stream of tokens of any vocabulary, as early as it is certain.

    The joined results of `push` and `finish` are the text after that of `before`.

    Args:
        before: ids before the stream; a character may begin in them.
        stop: texts that end the stream; text that may become one is held back.

    Attributes:
        stopped: whether a stop sequence has come; push no more then.
    """

    def __init__(
        self, vocabulary: Vocabulary, before: Iterable[int] = (), stop: Sequence[str] = ()
    ):
        self.vocabulary = vocabulary
        self.stop = tuple(stop)
        self.stopped = False
        self._ids = [int(i) for i in before]
        self._limit = CONTEXT
        self._held = ""
        self._before = text = self._text()
        self._returned = _certain(text)  # number of characters
        self._forget(text)

    def push(self, token: int) -> str:
        self._ids.append(int(token))
        text = self._text()
        new = self._new(text[: _certain(text)])
        self._forget(text)
        return self._until_stop(new)

    def finish(self) -> str:
        """Returns the rest; incomplete characters as U+FFFD."""
        rest = self._until_stop(self._new(self._text())) + self._held
        self._held = ""
        return rest

    def _new(self, text):
        pairs = zip(text, self._before)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        new = text[max(self._returned, common) :]
        self._returned = max(self._returned, len(text))
        return new

    def _text(self):
        return self.vocabulary.decode(self._ids) if self._ids else ""

    def _forget(self, text):
        """Drops all but the last few ids, if all their text has been returned.

        A beginning may be decoded differently (a first piece without its space), so the remaining
        ids must show something.
        """
        if len(self._ids) <= self._limit or self._returned < len(text):
            return
        recent = self._ids[-CONTEXT // 2 :]
        shown = self.vocabulary.decode(recent)
        if shown.strip().strip(UNSURE):
            self._ids, self._returned, self._limit = recent, len(shown), CONTEXT
            self._before = ""
        else:  # all white space
            self._limit = 2 * len(self._ids)

    def _until_stop(self, new):
        self._held += new
        begins = [begin for stop in self.stop if (begin := self._held.find(stop)) >= 0]
        if begins:
            text = self._held[: min(begins)]
            self._held = ""
            self.stopped = True
            return text
        sure = len(self._held) - max(
            (
                size
                for stop in self.stop
                for size in range(1, len(stop))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )
        text, self._held = self._held[:sure], self._held[sure:]
        return text


def _certain(text):
    tail = text[-MOST_UNSURE:]
    return len(text) - len(tail) + len(tail.rstrip(UNSURE))
