"""Text from tokens as they come, never a character in halves, and where it is to stop."""

import itertools
from collections.abc import Iterable, Sequence

from brt.data.vocabularies.base import Vocabulary

UNSURE = "\ufffd"
"""The character that stands for bytes that are not, or not yet, a character of UTF-8."""

MOST_UNSURE = 3
"""A character of UTF-8 has four bytes, so at most three are an unfinished one."""

CONTEXT = 32
"""Tokens that are decoded anew with each new one, before some are forgotten."""


class StreamingText:
    """The text of a stream of tokens, of any vocabulary, as early as it is certain.

    All that `push` and `finish` return, joined, is what the tokens add to the text of those
    before; cut where the first stop sequence begins.

    Args:
        vocabulary: of the tokens.
        before: ids that come before the stream; they decide whether it begins with a space, and
            a character may begin in them.
        stop: texts that end the stream; what may still become one is held back.

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
        self._look_again = CONTEXT
        self._held = ""
        self._before = text = self._text()
        self._said = _certain(text)  # characters of the text of `_ids` that have been passed on
        self._forget(text)

    def push(self, token: int) -> str:
        """Adds a token, and returns the text that has become certain with it."""
        self._ids.append(int(token))
        text = self._text()
        new = self._say(text[: _certain(text)])
        self._forget(text)
        return self._until_stop(new)

    def finish(self) -> str:
        """Returns the rest: unfinished characters, as U+FFFD, and what was held back."""
        rest = self._until_stop(self._say(self._text())) + self._held
        self._held = ""
        return rest

    def _say(self, text):
        """Returns the new part of `text`, with a character that began before, if it changed."""
        pairs = zip(text, self._before)
        known = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        new = text[max(self._said, known) :]
        self._said = max(self._said, len(text))
        return new

    def _text(self):
        return self.vocabulary.decode(self._ids) if self._ids else ""

    def _forget(self, text):
        """Keeps the last few ids only, if all is said and they are enough to go on.

        The beginning of a text may be rendered in its own way (a first piece without its space),
        so what is kept must show something: then what follows is not at the beginning.
        """
        if len(self._ids) <= self._look_again or self._said < len(text):
            return
        kept = self._ids[-CONTEXT // 2 :]
        shown = self.vocabulary.decode(kept)
        if shown.strip().strip(UNSURE):
            self._ids, self._said, self._look_again = kept, len(shown), CONTEXT
            self._before = ""
        else:  # all of it is white space; not to be tried at every token
            self._look_again = 2 * len(self._ids)

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
    """Returns the number of characters that no further token can change."""
    tail = text[-MOST_UNSURE:]
    return len(text) - len(tail) + len(tail.rstrip(UNSURE))
