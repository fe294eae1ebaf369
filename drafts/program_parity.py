"""Eager head against compiled programs: drafted ids, and what both leave in the cache, which is all a program shows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from compiler import EdgeDifference, bound_for, compare_edges
from drafts.cache import DrafterCache
from drafts.eager_glm5_next import EagerGlm5NextHead, EagerPath
from drafts.parity import ParityReport, Prompt, draft_after_prompt
from drafts.path import DraftPath
from drafts.proposer import DraftProposer


def compare_eager_with_programs(
    proposer: DraftProposer, programs: DraftPath, prompts: Sequence[Prompt], *, num_drafts: int
) -> ParityReport:
    """Draft `num_drafts` after each prompt by both, prompts prefilled by each itself, on caches of their own.

    Edges are the cache rows of the prompt and of the drafts, up to the first draft that differs. `programs` run a
    binding of `proposer`. Raises ValueError for no prompts.
    """
    if not prompts:
        raise ValueError("compare_eager_with_programs: expected at least one prompt, got none")
    eager = EagerPath(EagerGlm5NextHead(proposer.config, proposer.weights, proposer.decisions))
    bound = bound_for(proposer.config.dtype)
    worst: dict[str, EdgeDifference] = {}
    ids: dict[str, list[tuple[int, ...]]] = {eager.name: [], programs.name: []}
    num_compared = 0
    for prompt in prompts:
        drafted = {
            path.name: draft_after_prompt(path, proposer, prompt, num_drafts=num_drafts) for path in (eager, programs)
        }
        for name, (drafts, _) in drafted.items():
            ids[name].append(tuple(drafts))
        (theirs, their_cache), (ours, our_cache) = drafted[eager.name], drafted[programs.name]
        num_equal = next((step for step in range(num_drafts) if ours[step] != theirs[step]), num_drafts)
        num_steps = min(num_equal + 1, num_drafts)
        num_compared += num_steps
        # draft i + 1 is fed by draft i, so the row of the first one that differs is still of the same token
        num_rows = len(prompt.tokens) - 2 + num_steps
        edges = [_contents(cache, num_rows) for cache in (our_cache, their_cache)]
        for difference in compare_edges(*edges, step=0, bound=bound):
            held = worst.get(difference.edge)
            if held is None or difference.relative_l2 > held.relative_l2:
                worst[difference.edge] = difference
    return ParityReport(
        bound=bound,
        edges=tuple(worst.values()),
        eager_ids=tuple(ids[eager.name]),
        circuit_ids=tuple(ids[programs.name]),
        num_steps=len(prompts) * num_drafts,
        num_steps_compared=num_compared,
    )


def _contents(cache: DrafterCache, num_rows: int) -> dict[str, Tensor]:
    """The first `num_rows` rows of the cache's one sequence: latent rows, complete pools' keys, newest raw rows."""
    kpool = cache.config.index_kpool
    raw = torch.arange(max(0, num_rows - kpool), num_rows)
    ring = cache.tail[1, raw % cache.tail_depth]
    return {
        "latent": cache.latent[1:].flatten(0, 1)[:num_rows],
        "pool_keys": cache.index_keys[1:].flatten(0, 1)[: num_rows // kpool],
        "idx_k": ring[:, 0],
        "idx_gate": ring[:, 1],
    }
