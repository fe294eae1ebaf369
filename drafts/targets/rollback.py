"""Exact rollback of a transformers cache, layer kind by layer kind.

`Cache.crop` cuts keys, values and indexer keys, but a linear-attention (KDA) layer folds every token into one recurrent
state and keeps no record of it: cropping such a cache raises nothing and is wrong. So each KDA layer records, during a
verify pass, its recurrent state after every token and the columns its convolution saw; a rollback puts the recorded
state back.

The recording runs the layer's own `forward` code with two of its function names bound to recorders. That copy belongs
to one layer and one pass; the transformers module is never changed.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicIndexedLayer, DynamicLayer, LinearAttentionLayer
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextLinearAttention

from circuit.errors import ConfigError

CONVOLVE, ATTEND, RECUR = "causal_conv1d_fn", "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"


class LayerUndo(Protocol):
    """How one cache layer goes back within the pass it was made for."""

    def keep(self, num_kept: int, num_run: int) -> None:
        """Leave the layer as after the first `num_kept` of the `num_run` tokens of the pass."""
        ...

    def restore(self) -> None:
        """Leave the layer as before the pass, however far the pass came."""
        ...


class GrowingUndo:
    """Undo for a layer that grows by concatenation: keys, values and, in an indexed layer, indexer keys.

    Growth makes new tensors, so holding the old ones is a free snapshot.
    """

    def __init__(self, layer: DynamicLayer) -> None:
        self.layer = layer
        self.keys, self.values = layer.keys, layer.values
        self.indexer_keys = layer.indexer_keys if isinstance(layer, DynamicIndexedLayer) else None

    def keep(self, num_kept: int, num_run: int) -> None:
        """Cut the newest `num_run - num_kept` tokens from every tensor of the layer."""
        self.layer.crop(num_kept - num_run)

    def restore(self) -> None:
        """Put the tensors of before the pass back."""
        self.layer.keys, self.layer.values = self.keys, self.values
        if isinstance(self.layer, DynamicIndexedLayer):
            self.layer.indexer_keys = self.indexer_keys


class KdaUndo:
    """Undo for a KDA layer: its states before the pass, and the recorder of a pass of several tokens.

    Recurrent states come from the layer's one-token recurrence, run token by token: the arithmetic of plain decoding
    (and less work than the chunked form, which pads every pass to 64 tokens).
    """

    def __init__(self, layer: LinearAttentionLayer, module: Glm5NextTextLinearAttention) -> None:
        conv_state, recurrent_state = layer.conv_states[0], layer.recurrent_states[0]
        assert conv_state is not None, "the layer holds no tokens"
        assert recurrent_state is not None, "the layer holds no tokens"
        self.module = module
        self.live_conv_state, self.live_recurrent_state = conv_state, recurrent_state
        # the layer writes its states in place, so these two are copied
        self.conv_state = conv_state.clone()  # [1, channels, kernel]
        self.recurrent_state = recurrent_state.clone()  # [1, heads, k_dim, v_dim]
        self.conv_columns: Tensor | None = None  # [1, channels, kernel + n]
        self.recurrent_states: list[Tensor] = []  # one after each of the n tokens
        forward = _forward_function()
        self._convolve, self._recur = forward.__globals__[CONVOLVE], forward.__globals__[RECUR]
        names = {**forward.__globals__, CONVOLVE: self._record_columns, ATTEND: self._record_states}
        copy = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
        copy.__kwdefaults__ = forward.__kwdefaults__
        self.recording_forward = MethodType(copy, module)

    def keep(self, num_kept: int, num_run: int) -> None:
        """Copy the states after token `num_kept` back into the layer."""
        if num_kept == num_run:
            return
        if num_kept == 0:
            self.restore()
            return
        assert self.conv_columns is not None, "the pass was not recorded"
        assert len(self.recurrent_states) == num_run, "the pass was not recorded"
        self.live_conv_state.copy_(self.conv_columns[..., num_kept : num_kept + self.conv_state.shape[-1]])
        self.live_recurrent_state.copy_(self.recurrent_states[num_kept - 1])

    def restore(self) -> None:
        """Copy the states of before the pass back into the layer."""
        self.live_conv_state.copy_(self.conv_state)
        self.live_recurrent_state.copy_(self.recurrent_state)

    # the two recorders pass on arguments that are transformers' own, hence `options`

    def _record_columns(self, columns: Tensor, **options: Any) -> Tensor:
        # the layer hands over its old state followed by the new tokens' columns
        self.conv_columns = columns
        return self._convolve(columns, **options)

    def _record_states(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        state, outputs = initial_state, []
        for index in range(query.shape[1]):
            one = slice(index, index + 1)
            output, state = self._recur(
                query[:, one],
                key[:, one],
                value[:, one],
                g=g[:, one],
                beta=beta[:, one],
                initial_state=state,
                **options,
            )
            outputs.append(output)
            self.recurrent_states.append(state)
        return torch.cat(outputs, dim=1), state


def _forward_function() -> FunctionType:
    forward = inspect.unwrap(Glm5NextTextLinearAttention.forward)
    assert isinstance(forward, FunctionType)
    return forward


@contextmanager
def recording(undo: Sequence[LayerUndo]) -> Iterator[None]:
    """Let the KDA layers run their recording forward inside the block; afterwards they are as before, error or not."""
    modules = [(layer.module, layer.recording_forward) for layer in undo if isinstance(layer, KdaUndo)]
    try:
        for module, forward in modules:
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, _ in modules:
            module.__dict__.pop("forward", None)


def check_layers(cache: Cache, modules: Mapping[int, Glm5NextTextLinearAttention], *, where: str) -> None:
    """Raise ConfigError unless every layer rolls back exactly and a KDA layer can be recorded.

    `modules` are the KDA modules by layer number.
    """
    for index, layer in enumerate(cache.layers):
        is_recorded = type(layer) is LinearAttentionLayer and index in modules
        if type(layer) not in (DynamicLayer, DynamicIndexedLayer) and not is_recorded:
            raise ConfigError(
                f"{where}: expected layers that roll back exactly (full, indexed or KDA attention), "
                f"got {type(layer).__name__} at layer {index}; use another target"
            )
    for index, module in modules.items():
        for name in (CONVOLVE, ATTEND, RECUR):
            if name not in _forward_function().__code__.co_names:
                raise ConfigError(
                    f"{where}: expected the KDA layer of transformers to call {name}, it does not; "
                    "install a release this adapter was tested with (5.24)"
                )
        if "forward" in module.__dict__:
            raise ConfigError(
                f"{where}: expected an unpatched KDA layer, got a replaced forward at layer {index}; undo it"
            )


def take_undo(cache: Cache, modules: Mapping[int, Glm5NextTextLinearAttention]) -> tuple[LayerUndo, ...]:
    """Return one undo per layer for the pass that is about to run; the cache must hold tokens."""
    undo: list[LayerUndo] = []
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionLayer):
            undo.append(KdaUndo(layer, modules[index]))
        else:
            assert isinstance(layer, DynamicLayer)
            undo.append(GrowingUndo(layer))
    return tuple(undo)
