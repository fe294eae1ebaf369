"""DraftHead: which rows of lm_head may be drafted, and in what form they are read; the levers of both in one record."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor

from circuit import BindingError

HeadForm = Literal["bf16", "int8", "int8_certified"]


def read_draft_vocab(given: Any) -> Any:
    """Return token ids as a tuple: of a file with one id a line, of a list or a tensor; ValueError names the fault.

    Ids must be strictly ascending, so that the lowest row is the lowest id and ties fall as in the whole vocabulary.
    """
    where = "draft_vocab"
    if isinstance(given, str | Path):
        where = f"draft_vocab {given}"
        words = _file_words(Path(given))
        if wrong := [word for word in words if not word.isdecimal()]:
            raise ValueError(f"{where}: expected one token id a line, got {wrong[0]!r}")
        given = [int(word) for word in words]
    if isinstance(given, Tensor):
        given = given.tolist()
    if not isinstance(given, list | tuple) or not all(type(token) is int for token in given):
        return tuple(given) if isinstance(given, list) else given
    if not given:
        raise ValueError(f"{where}: expected token ids, got none; leave the lever out to draft any token")
    for before, after in pairwise(given):
        if before >= after:
            raise ValueError(
                f"{where}: expected ascending ids, each once, got {after} after {before}; sort them and drop doubles"
            )
    return tuple(given)


DraftVocab = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(read_draft_vocab)]


class DraftHead(BaseModel):
    """How a drafter reads lm_head; the levers of the same names say what each value means."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    draft_head: HeadForm = "bf16"
    draft_vocab: DraftVocab | None = Field(default=None, repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether every row is read as it is: the head as the checkpoint states it."""
        return self.draft_head == "bf16" and self.draft_vocab is None

    def num_rows(self, vocab_size: int) -> int:
        """Return the rows that are read; BindingError where an id is beyond the vocabulary."""
        if self.draft_vocab is None:
            return vocab_size
        if self.draft_vocab[-1] >= vocab_size:
            raise BindingError(
                f"draft_vocab: expected token ids below vocab_size {vocab_size}, got {self.draft_vocab[-1]}; "
                "use the list of this model's tokenizer"
            )
        return len(self.draft_vocab)

    def recorded(self) -> dict[str, str]:
        """Return what a manifest says of it, which is nothing of the whole head."""
        vocab = self.draft_vocab
        form = {} if self.draft_head == "bf16" else {"draft_head": self.draft_head}
        return form | ({} if vocab is None else {"draft_vocab": " ".join(map(str, vocab))})

    def bitmask(self, vocab_size: int) -> Tensor | None:
        """Return the tokens that may be drafted as a grammar's words, int32 [words]; None for all of them."""
        if self.draft_vocab is None:
            return None
        bits = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.int64)
        bits[list(self.draft_vocab)] = 1
        return (bits.view(-1, 32) << torch.arange(32)).sum(dim=1).to(torch.int32)


WHOLE_HEAD = DraftHead()


def _file_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "other bytes than text"
        raise ValueError(
            f"draft_vocab {path}: expected a text file with one token id a line, got {found}; check the path"
        ) from None
