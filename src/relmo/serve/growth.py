"""Texts of many clients that grow together, a symbol at a time.

A thread lets all texts of a model grow by one symbol in one batch, prompts that are still being read among them, and
tells each client what was added. A request that comes meanwhile joins at the next symbol, and one that is done, or
whose client has gone, leaves. So nobody waits for another's text to end.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from relmo.models.generate import step_together

if TYPE_CHECKING:
    from relmo.models.lm import GrowingTexts, LanguageModel, Text

News = dict[str, Any] | Exception | None
"""What a client is told: a record, what went wrong, or None after the last."""


class Grown:
    """The texts of a request while they grow; `news` is what its client is yet to be told."""

    def __init__(self, texts: "GrowingTexts"):
        self.texts = texts
        self.news: asyncio.Queue[News] = asyncio.Queue()
        self.shown = [""] * texts.draws.rows
        self.gone = False
        """Set where its client has gone."""

    def added(self, texts: "Sequence[Text]") -> list[News]:
        """What is new in texts: their ends, or where a new word has changed what stood before it, the whole text."""
        found: list[News] = []
        for number, (text, shown) in enumerate(zip(texts, self.shown, strict=True)):
            if text.text.startswith(shown):
                found += [{"sample": number, "added": text.text[len(shown) :]}] if text.text != shown else []
            else:
                found.append({"sample": number, "text": text.text})
            self.shown[number] = text.text
        if self.texts.draws.done:
            found += [{"texts": [asdict(text) for text in texts]}, None]
        return found


class Growth:
    """Lets the texts of a model grow. `told` hears how many grew by a symbol."""

    def __init__(self, model: "LanguageModel", told: Callable[[int], object] = lambda requests: None):
        self.model, self.told = model, told
        self.loop = asyncio.get_running_loop()
        self.joining: list[Grown] = []
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._work, name="relmo growth", daemon=True)
        self.thread.start()

    def add(self, texts: "GrowingTexts") -> Grown:
        """Texts that grow from now on."""
        grown = Grown(texts)
        with self.changed:
            self.joining.append(grown)
            self.changed.notify()
        return grown

    def close(self) -> None:
        """Ends the thread."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def _work(self) -> None:
        growing: list[Grown] = []
        while not self.closed:
            with self.changed:
                if not growing:
                    self.changed.wait_for(lambda: self.joining or self.closed)
                growing += self.joining
                self.joining = []
            growing = [each for each in growing if not each.gone]
            if growing:
                self.told(len(growing))
                news = self._grow(growing)
                if not self.loop.is_closed():  # as after a shutdown that did not wait for this step
                    self.loop.call_soon_threadsafe(_tell, growing, news)
                growing = [each for each, said in zip(growing, news, strict=True) if None not in said]

    def _grow(self, growing: Sequence[Grown]) -> list[list[News]]:
        """Return the news for the client of each request after one more symbol."""
        try:
            step_together(self.model.network, [each.texts.draws for each in growing])
        except Exception as error:
            if len(growing) == 1:
                return [[error, None]]
            return [self._grow([each])[0] for each in growing]  # so that one request does not harm the others
        return [self._draw(each) for each in growing]

    @staticmethod
    def _draw(grown: Grown) -> list[News]:
        """Draw a symbol for each text of a request whose prompt is read."""
        if grown.texts.draws.log_probs is None:
            return []
        try:
            return grown.added(grown.texts.add())
        except Exception as error:
            return [error, None]


def _tell(growing: Sequence[Grown], news: Sequence[list[News]]) -> None:
    for each, said in zip(growing, news, strict=True):
        for one in said:
            each.news.put_nowait(one)
