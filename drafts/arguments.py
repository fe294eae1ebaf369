"""Checks of what a serving loop hands the proposer; every fault is a ValueError before anything runs."""

from collections.abc import Mapping, Sequence, Sized

import torch
from torch import Tensor

from drafts.batch import HOST
from drafts.config import DraftConfig

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def token_ids(tokens: Sequence[int] | Tensor, config: DraftConfig, *, where: str) -> Tensor:
    """Return int64 [n] of ids that the vocabulary holds, on the host, where a run's numbers are known."""
    try:
        ids = torch.as_tensor(tokens, device=HOST)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: no tensor of it, or one without data
        raise ValueError(f"{where}.tokens: expected integers [n], got {type(tokens).__name__} ({error})") from error
    if ids.dim() != 1 or (ids.numel() and ids.dtype not in INTEGER_DTYPES):
        raise ValueError(f"{where}.tokens: expected integers [n], got {ids.dtype} {list(ids.shape)}")
    ids = ids.to(torch.int64)
    outside = next((token for token in ids.tolist() if not 0 <= token < config.vocab_size), None)
    if outside is not None:
        raise ValueError(f"{where}.tokens: expected ids 0 to {config.vocab_size - 1}, got {outside}")
    return ids


def check_hiddens(hiddens: Tensor, config: DraftConfig, *, num_rows: int, where: str, device: torch.device) -> None:
    """Hold that `hiddens` is [num_rows, hidden_size] in the model dtype on the drafter's device; any strides do."""
    if not isinstance(hiddens, Tensor):
        raise ValueError(f"{where}.hiddens: expected a tensor, got {type(hiddens).__name__}")
    expected = (num_rows, config.hidden_size)
    if tuple(hiddens.shape) != expected or hiddens.dtype != config.dtype:
        raise ValueError(
            f"{where}.hiddens: expected {config.dtype} {list(expected)}, one per token, "
            f"got {hiddens.dtype} {list(hiddens.shape)}"
        )
    if hiddens.device != device or hiddens.layout != torch.strided:
        raise ValueError(
            f"{where}.hiddens: expected a strided tensor on {device}, got {hiddens.layout} on {hiddens.device}; "
            f"move it first"
        )


def one_hidden(target_hidden: Tensor, config: DraftConfig, *, where: str, device: torch.device) -> Tensor:
    """Return a copy [1, hidden_size] of a hidden [hidden_size] or [1, hidden_size]; the caller may reuse its own."""
    is_flat = isinstance(target_hidden, Tensor) and target_hidden.dim() == 1
    hidden = target_hidden.unsqueeze(0) if is_flat else target_hidden
    check_hiddens(hidden, config, num_rows=1, where=where, device=device)
    return hidden.clone(memory_format=torch.contiguous_format)


def check_range(name: str, number: int, low: int, high: int | None) -> None:
    """Hold that an integer lies in low .. high; None is no upper limit."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"{name}: expected an integer, got {type(number).__name__} {number!r}")
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: expected {low} {'or more' if high is None else f'to {high}'}, got {number}")


def check_batch(states: Sequence[object], columns: Mapping[str, Sized], *, limit: int | None, where: str) -> None:
    """Hold that the columns of a batch are as long as its states, that no state comes twice, and the limit."""
    if limit is not None and len(states) > limit:
        raise ValueError(f"{where}.states: expected at most {limit} sequences, got {len(states)}; split the batch")
    if len({id(state) for state in states}) != len(states):
        raise ValueError(f"{where}.states: expected each state once, got one twice; call again for its next row")
    for name, column in columns.items():
        if len(column) != len(states):
            raise ValueError(f"{where}.{name}: expected {len(states)} like states, got {len(column)}")


def embed_buffer(buffer: Tensor, config: DraftConfig, *, num_drafts: int, device: torch.device) -> Tensor:
    """Return draft_embed_target as [num_drafts, hidden_size], a view: [hidden_size] is one draft's."""
    if not isinstance(buffer, Tensor):
        raise ValueError(f"propose.draft_embed_target: expected a tensor, got {type(buffer).__name__}")
    rows = buffer.unsqueeze(0) if buffer.dim() == 1 else buffer
    expected = (num_drafts, config.hidden_size)
    if tuple(rows.shape) != expected or rows.dtype != config.dtype or rows.device != device:
        raise ValueError(
            f"propose.draft_embed_target: expected {config.dtype} {list(expected)} on {device}, got {buffer.dtype} "
            f"{list(buffer.shape)} on {buffer.device}"
        )
    if any(stride == 0 and size > 1 for stride, size in zip(rows.stride(), rows.shape, strict=True)):
        raise ValueError("propose.draft_embed_target: expected memory of its own for each element, got an expanded one")
    return rows
