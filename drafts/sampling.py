"""How a verify pass decides: which drafts stand, and which token the target puts after them.

Greedy: a draft stands while it is the target's argmax. Sampled: speculative rejection sampling, which leaves exactly
the target's distribution whatever the drafter proposed: a draft d with proposal probability q(d) stands with
probability min(1, p(d) / q(d)); at the first that does not, the token is drawn from max(p - q, 0), renormalised; when
all stand, one more is drawn from the last row's p. A drafter that proposes its argmax has a one-hot q: d stands with
probability p(d), else the token comes from p without d. Source: Leviathan et al. 2023; Chen et al. 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's next token is drawn. Temperature 0 is greedy: argmax, lowest id wins a tie.

    `top_p` keeps the fewest most probable tokens (lower id first among equals) whose mass reaches it. `seed` starts the
    generator of one sequence. Raises ValueError for values out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"Sampling.temperature: expected a finite number >= 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"Sampling.top_p: expected a number in (0, 1], got {self.top_p}")

    @property
    def is_greedy(self) -> bool:
        """Whether the token is the argmax and no random number is drawn."""
        return self.temperature == 0.0

    def generator(self) -> torch.Generator:
        """Return a fresh CPU generator at `seed`."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The first `num_accepted` drafts stand; `token` is the target's own token after them."""

    num_accepted: int
    token: int


def accept_greedy(logits: Tensor, drafts: Sequence[int]) -> Acceptance:
    """Accept the leading drafts that are the target's argmax.

    logits [K + 1, vocab]: row i decides the token after draft i (row 0: after the last committed token). Any dtype, any
    device; one transfer to the host. Raises ValueError when the rows are not one more than the drafts.
    """
    _check_rows(logits, drafts)
    choices = logits.argmax(dim=-1).tolist()
    num_accepted = 0
    while num_accepted < len(drafts) and drafts[num_accepted] == choices[num_accepted]:
        num_accepted += 1
    return Acceptance(num_accepted, choices[num_accepted])


def target_probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distributions that `sampling` draws from, f64 [n, vocab] on the CPU, rows summing to 1.

    Softmax in f64 of logits / temperature, then the top-p cut and renormalisation.
    Raises ValueError for greedy sampling.
    """
    if sampling.is_greedy:
        raise ValueError("target_probabilities: expected a temperature above 0, got 0; use accept_greedy")
    probabilities = torch.softmax(logits.double().cpu() / sampling.temperature, dim=-1)
    if sampling.top_p == 1.0:
        return probabilities
    ordered, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    # a token stays while the mass before it has not reached top_p, so the first always stays
    is_kept = ordered.cumsum(dim=-1) - ordered < sampling.top_p
    is_kept[..., 0] = True
    kept = torch.zeros_like(probabilities).scatter(-1, ids, ordered * is_kept)
    return kept / kept.sum(dim=-1, keepdim=True)


def accept_sampled(
    probabilities: Tensor,
    drafts: Sequence[int],
    *,
    generator: torch.Generator,
    draft_probabilities: Tensor | None = None,
) -> Acceptance:
    """Accept drafts by rejection so that the emitted tokens follow the target's distribution exactly.

    probabilities [K + 1, vocab]: the target's p, as from `target_probabilities`. draft_probabilities [K, vocab]: the q
    each draft was drawn from; None says that the drafts were not drawn but chosen (argmax): one-hot rows.
    Draws one uniform number per draft looked at and one token. Raises ValueError for rows or ids that do not fit.
    """
    _check_rows(probabilities, drafts)
    if draft_probabilities is not None and draft_probabilities.shape != (len(drafts), probabilities.shape[-1]):
        raise ValueError(
            f"accept_sampled.draft_probabilities: expected [{len(drafts)}, {probabilities.shape[-1]}], "
            f"got {list(draft_probabilities.shape)}"
        )
    for index, draft in enumerate(drafts):
        p = probabilities[index]
        q = _one_hot(draft, like=p) if draft_probabilities is None else draft_probabilities[index].to(p)
        uniform = torch.rand((), generator=generator, dtype=torch.float64).item()
        # u < p / q without the division: a draft that q could not give (q = 0) is judged as p / 0 = no limit
        if uniform * q[draft].item() < p[draft].item():
            continue
        residual = (p - q).clamp(min=0)
        # nothing is left only where p <= q everywhere, that is p = q up to rounding: then the draft may stand
        if residual.sum().item() <= 0.0:
            continue
        return Acceptance(index, _draw(residual, generator))
    return Acceptance(len(drafts), _draw(probabilities[len(drafts)], generator))


def _check_rows(rows: Tensor, drafts: Sequence[int]) -> None:
    if rows.dim() != 2 or rows.shape[0] != len(drafts) + 1:
        raise ValueError(f"accept: expected {len(drafts) + 1} rows for {len(drafts)} drafts, got {list(rows.shape)}")
    for draft in drafts:
        if not 0 <= draft < rows.shape[1]:
            raise ValueError(f"accept: expected draft ids in 0 .. {rows.shape[1] - 1}, got {draft}")


def _one_hot(token: int, *, like: Tensor) -> Tensor:
    row = torch.zeros_like(like)
    row[token] = 1.0
    return row


def _draw(weights: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(weights, 1, generator=generator).item())
