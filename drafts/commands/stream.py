"""Tokens as they are emitted, as text on a terminal: the drafted ones told from the target's own."""

from rich.text import Text
from torch import Tensor

from drafts.batch import RowBatch
from drafts.binding import DraftBinding
from drafts.cache import DrafterCache
from drafts.commands.screen import Screen
from drafts.path import DraftPath, Drafts
from drafts.targets.tokenizer import CheckpointTokenizer

PROMPT, DRAFTED, OWN = "dim", "green", "bold yellow"
UNFINISHED = "\ufffd"  # what a decoder gives for bytes of a character that is not whole yet


class WatchedPath:
    """A draft path that remembers the ids of its last draft, of one sequence; it drafts as the path it watches."""

    def __init__(self, path: DraftPath) -> None:
        self._path = path
        self.drafts: list[int] = []

    @property
    def name(self) -> str:
        """The name of the path it watches."""
        return self._path.name

    @property
    def is_batch_invariant(self) -> bool:
        """As the path it watches."""
        return self._path.is_batch_invariant

    @property
    def binding(self) -> DraftBinding | None:
        """That of the path it watches."""
        return self._path.binding

    def write_rows(self, rows: RowBatch, cache: DrafterCache) -> None:
        """Write context rows."""
        self._path.write_rows(rows, cache)

    def draft(
        self,
        rows: RowBatch,
        cache: DrafterCache,
        *,
        num_drafts: int,
        grammar: Tensor | None = None,
        has_confidence: bool = False,
    ) -> Drafts:
        """Draft, and remember the first sequence's ids."""
        drafts = self._path.draft(rows, cache, num_drafts=num_drafts, grammar=grammar, has_confidence=has_confidence)
        self.drafts = drafts.ids[0].tolist()
        return drafts


class TokenStream:
    """Prints a text token by token: accepted drafts green, the target's own tokens yellow, the prompt before them dim.

    Pass `take` as the loop's `on_token`. A character made of several tokens appears with its last one, in its colour.
    """

    def __init__(self, tokenizer: CheckpointTokenizer, screen: Screen, *, watch: WatchedPath) -> None:
        self._tokenizer, self._screen, self._watch = tokenizer, screen, watch
        self._tokens: list[int] = []  # since the last whole character, and one whole token before it
        self._shown = ""  # what these tokens' text has on the screen already

    def start(self, prompt: str, prompt_tokens: list[int]) -> None:
        """Print the prompt; the text goes on where it ends."""
        self._print(prompt, PROMPT)
        self._tokens = prompt_tokens[-1:]
        self._shown = self._tokenizer.decode(self._tokens)

    def take(self, token: int) -> None:
        """Print the next token."""
        is_drafted = self._watch.drafts[:1] == [token]
        # the first token that is not the next draft ends the round's drafts
        self._watch.drafts = self._watch.drafts[1:] if is_drafted else []
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(UNFINISHED):
            return
        self._print(text[len(self._shown) :], DRAFTED if is_drafted else OWN)
        self._tokens = [token]
        self._shown = self._tokenizer.decode(self._tokens)

    def finish(self) -> None:
        """End the line."""
        self._screen.out.print()

    def _print(self, text: str, style: str) -> None:
        # a terminal obeys control characters, and a model may emit any
        shown = "".join(char if char.isprintable() or char in "\n\t" else UNFINISHED for char in text)
        self._screen.out.print(Text(shown, style=style), end="", soft_wrap=True)
