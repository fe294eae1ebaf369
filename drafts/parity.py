"""Eager head against circuit over the same prompts: every common edge of every draft, and the drafted ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from circuit import BindingError, TensorType, Value
from compiler import Bound, EdgeDifference, bound_for, compare_edges
from drafts.batch import RowBatch
from drafts.cache import DrafterCache
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath
from drafts.path import DraftPath
from drafts.proposer import DraftProposer
from drafts.runner import DraftRunner


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens [P] and the target's hiddens [P, hidden_size] in the form the drafter is supplied with."""

    tokens: Sequence[int]
    hiddens: Tensor


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Differences per edge, the worst over prompts for each step, in the order of the forward.

    Steps after one whose drafted ids differ are not compared: they draft from different tokens. `num_steps_compared` of
    `num_steps` were.
    """

    bound: Bound
    edges: tuple[EdgeDifference, ...]
    eager_ids: tuple[tuple[int, ...], ...]
    circuit_ids: tuple[tuple[int, ...], ...]
    num_steps: int
    num_steps_compared: int

    @property
    def ids_equal(self) -> bool:
        """Whether every draft of every prompt is the same token."""
        return self.eager_ids == self.circuit_ids

    @property
    def ok(self) -> bool:
        """Whether ids are equal and every edge lies within its bound."""
        return self.ids_equal and all(edge.is_within_bound for edge in self.edges)


def compare_eager_with_circuit(proposer: DraftProposer, prompts: Sequence[Prompt], *, num_drafts: int) -> ParityReport:
    """Draft `num_drafts` after each prompt, once with the eager head and once with the circuit, on caches of their own.

    The prompt's rows are prefilled by each path itself, so a difference in the cache shows as one of the edges.
    Raises BindingError when the circuit does not model this drafter, ValueError for no prompts or one without a row.
    """
    if not prompts:
        raise ValueError("compare_eager_with_circuit: expected at least one prompt, got none")
    if (shortest := min(len(prompt.tokens) for prompt in prompts)) < 2:
        raise ValueError(f"compare_eager_with_circuit: expected prompts of 2 tokens or more, got {shortest}")
    binding = proposer.circuit_draft()
    if binding is None:
        raise BindingError("compare_eager_with_circuit: the circuit does not model this drafter; run the eager head")
    head = EagerGlm5NextHead(proposer.config, proposer.weights, proposer.decisions, draft_head=proposer.levers.head)
    eager = EagerPath(head, record_edges=True)
    recorded: list[dict[str, Tensor]] = []

    def record(step: int, value: Value, tensor: Tensor) -> None:
        if step == len(recorded):
            recorded.append({})
        if value.kind == "result" and isinstance(value.type, TensorType):
            recorded[step][value.name] = tensor

    circuit = DraftRunner(binding, observe=record)
    bound = bound_for(proposer.config.dtype)
    worst: dict[tuple[int, str], EdgeDifference] = {}
    eager_ids, circuit_ids, num_compared = [], [], 0
    for prompt in prompts:
        recorded.clear()
        ids = [draft_after_prompt(path, proposer, prompt, num_drafts=num_drafts)[0] for path in (eager, circuit)]
        eager_ids.append(tuple(ids[0]))
        circuit_ids.append(tuple(ids[1]))
        for step, (theirs, ours) in enumerate(zip(eager.last_steps, recorded, strict=True)):
            num_compared += 1
            for difference in compare_edges(_without_padding(ours), theirs.edges, step=step, bound=bound):
                key = (step, difference.edge)
                if key not in worst or difference.relative_l2 > worst[key].relative_l2:
                    worst[key] = difference
            if ids[0][step] != ids[1][step]:
                break
    return ParityReport(
        bound=bound,
        edges=tuple(worst.values()),
        eager_ids=tuple(eager_ids),
        circuit_ids=tuple(circuit_ids),
        num_steps=len(prompts) * num_drafts,
        num_steps_compared=num_compared,
    )


def _without_padding(edges: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the score columns of pools that no row may choose, which the eager head does not compute."""
    if "index_scores" not in edges:
        return edges
    scores = edges["index_scores"]
    num_pools = int((scores != float("-inf")).any(dim=0).sum())
    return edges | {"index_scores": scores[:, :num_pools]}


def draft_after_prompt(
    path: DraftPath, proposer: DraftProposer, prompt: Prompt, *, num_drafts: int
) -> tuple[list[int], DrafterCache]:
    """Prefill the prompt but its last token on a fresh cache, draft after that token; return the ids and the cache."""
    num_tokens = len(prompt.tokens)
    cache = DrafterCache.for_rows(
        proposer.config, num_tokens + num_drafts, max_num_drafts=proposer.max_num_drafts, device=prompt.hiddens.device
    )
    sequence = cache.allocate(rows=num_tokens + num_drafts)
    table = cache.block_table([sequence])
    tokens = torch.tensor(prompt.tokens, device=prompt.hiddens.device)

    def rows(start: int, stop: int) -> RowBatch:
        count = stop - start
        return RowBatch(
            token=tokens[start + 1 : stop + 1],
            hidden=prompt.hiddens[start:stop],
            position=torch.arange(start, stop, device=tokens.device),
            sequence=torch.full((count,), sequence.slot, device=tokens.device),
            block_table=table.expand(count, -1),
        )

    last = num_tokens - 2
    path.write_rows(rows(0, last), cache)
    return path.draft(rows(last, last + 1), cache, num_drafts=num_drafts).id_list(), cache
