"""A transformers model as a target: glm5_next (KDA and indexed layers), or a causal LM with plain full attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, DynamicCache, PreTrainedModel
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextIndexer, Glm5NextTextLinearAttention
from transformers.utils import logging as transformers_logging

from circuit.errors import CheckpointError, ConfigError, StateError
from drafts.targets.rollback import LayerUndo, check_layers, recording, take_undo
from drafts.targets.target import TargetRun
from drafts.targets.ties import lowest_index_first

GLM5_NEXT = "glm5_next"
VISION_PREFIX = "model.visual."


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence transformers' load report and its notes on missing kernels inside the block, then restore the setting."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars inside the block, then restore the setting."""
    if not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


def load_target(checkpoint: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> "TransformersTarget":
    """Load a checkpoint folder (config.json, safetensors) as a target; prints nothing and touches no network.

    No code from the checkpoint is run. The MTP layer's tensors belong to the drafter and are passed over. What
    transformers keeps in f32 (router, conv, decay) stays f32. Raises CheckpointError when files are missing or
    unreadable, or when a tensor the target needs is absent.
    """
    if not (checkpoint / "config.json").is_file():
        raise CheckpointError(f"{checkpoint}: expected a checkpoint folder with config.json, got none; check the path")
    with quiet_logs(), no_progress_bars():
        try:
            config = AutoConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
            loader = AutoModelForImageTextToText if config.model_type == GLM5_NEXT else AutoModelForCausalLM
            loaded: Any = loader.from_pretrained(
                checkpoint,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        # transformers raises OSError, ValueError, RuntimeError or KeyError for a bad checkpoint
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"{checkpoint}: expected a model transformers can load, got: {reason}") from error
    model, info = loaded
    # the vision tower is never run, so a text-only checkpoint may leave it out
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(VISION_PREFIX))
    if missing:
        raise CheckpointError(
            f"{checkpoint}: expected every tensor of the target, got no {missing[0]} ({len(missing)} missing); "
            "check that all safetensors shards are present"
        )
    return TransformersTarget(model.to(device))


def _final_norm(model: PreTrainedModel) -> nn.Module:
    for path in ("model.language_model.norm", "model.norm"):
        try:
            return model.get_submodule(path)
        except AttributeError:
            continue
    raise ConfigError(
        f"TransformersTarget: expected a final norm at model.norm or model.language_model.norm, "
        f"got none in {type(model).__name__}; use another target"
    )


class TransformersTarget:
    """Opens sequences on one transformers model; forwards of its sequences are serialised by a lock.

    While a forward runs, a hook sits on the final norm and, in a verify, recording forwards on the KDA layers; they are
    gone when it returns or raises. Wrap a model once: two targets over one model must not run at the same time.
    Not supported: batches, images, sliding-window and other recurrent layers (ConfigError).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        self.text_config = model.config.get_text_config()
        self._lock = Lock()
        self._norm = _final_norm(model)
        self.kda_modules = {
            module.layer_idx: module for module in model.modules() if isinstance(module, Glm5NextTextLinearAttention)
        }
        self.indexers = tuple(module for module in model.modules() if isinstance(module, Glm5NextTextIndexer))
        check_layers(self.new_cache(), self.kda_modules, where="TransformersTarget")

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 .. vocab_size - 1."""
        return int(self.text_config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Most tokens one sequence can hold: the config's max_position_embeddings."""
        return int(self.text_config.max_position_embeddings)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The config's end-of-text ids."""
        eos = self.text_config.eos_token_id
        return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live."""
        return self.model.device

    def new_cache(self) -> DynamicCache:
        """Return an empty cache with this model's layer kinds."""
        return DynamicCache(config=self.text_config)

    def open_sequence(self) -> "TransformersSequence":
        """Return a new, empty sequence."""
        return TransformersSequence(self)

    def forward(
        self, tokens: Sequence[int], cache: DynamicCache, *, num_logits: int, undo: Sequence[LayerUndo] = ()
    ) -> TargetRun:
        """Run `tokens` after what `cache` holds; logits for the last `num_logits` of them. Updates cache and `undo`."""
        captured: list[Tensor] = []

        def capture(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            captured.extend((inputs[0], output))

        input_ids = torch.tensor([list(tokens)], dtype=torch.int64, device=self.device)
        with self._lock, quiet_logs(), torch.no_grad():
            hook = self._norm.register_forward_hook(capture)
            try:
                with recording(undo), lowest_index_first(self.indexers):
                    output = self.model(input_ids=input_ids, cache=cache, use_cache=True, logits_to_keep=num_logits)
            finally:
                hook.remove()
        hiddens, normed_hiddens = captured
        return TargetRun(hiddens[0], normed_hiddens[0], output.logits[0])


class TransformersSequence:
    """One sequence of a TransformersTarget: its cache and what the last verify needs to be undone."""

    def __init__(self, target: TransformersTarget) -> None:
        self._target = target
        self._num_tokens = 0
        self._undo: tuple[LayerUndo, ...] = ()
        self._num_run = 0
        self.cache = target.new_cache()

    @property
    def num_tokens(self) -> int:
        """Tokens the cache holds."""
        return self._num_tokens

    def prefill(self, tokens: Sequence[int]) -> TargetRun:
        """Run the prompt on an empty sequence; hiddens for every token, logits [1, vocab] of the last.

        Raises ValueError for bad token ids, StateError when the sequence is not empty or the prompt does not fit.
        An exception leaves the sequence empty.
        """
        if self._num_tokens:
            raise StateError(
                f"prefill: expected an empty sequence, got one with {self._num_tokens} tokens; open a new sequence"
            )
        self._check(tokens, where="prefill")
        try:
            run = self._target.forward(tokens, self.cache, num_logits=1)
        except BaseException:
            self.cache = self._target.new_cache()
            raise
        self._num_tokens = len(tokens)
        return run

    def verify(self, tokens: Sequence[int]) -> TargetRun:
        """Run one or more tokens after those held, in one pass; hiddens and logits for each of them.

        The tokens stay until `rollback` takes some away. Raises as `prefill`; an exception leaves the tokens held as
        they were. A verify gives up the rollback of the one before it.
        """
        if not self._num_tokens:
            raise StateError("verify: expected a sequence with tokens, got an empty one; prefill a prompt first")
        self._check(tokens, where="verify")
        target, self._undo = self._target, ()
        undo = take_undo(self.cache, target.kda_modules)
        try:
            run = target.forward(tokens, self.cache, num_logits=len(tokens), undo=undo)
        except BaseException:
            for layer in undo:
                layer.restore()
            raise
        self._undo, self._num_run = undo, len(tokens)
        self._num_tokens += len(tokens)
        return run

    def rollback(self, num_kept: int) -> None:
        """Keep the first `num_kept` tokens of the last verify and drop the rest, in every layer's state.

        What follows is as if only the kept tokens had been run, up to the rounding of another pass width.
        Raises ValueError when num_kept is outside 0 .. tokens verified, StateError without a verify to roll back.
        """
        if not self._undo:
            raise StateError("rollback: expected a verify that was not rolled back yet, got none; verify first")
        if not 0 <= num_kept <= self._num_run:
            raise ValueError(f"rollback: expected num_kept in 0 .. {self._num_run}, got {num_kept}")
        for layer in self._undo:
            layer.keep(num_kept, self._num_run)
        self._num_tokens -= self._num_run - num_kept
        self._undo = ()

    def _check(self, tokens: Sequence[int], *, where: str) -> None:
        if not tokens:
            raise ValueError(f"{where}: expected at least one token, got none")
        for token in tokens:
            if not isinstance(token, int) or not 0 <= token < self._target.vocab_size:
                raise ValueError(f"{where}: expected token ids in 0 .. {self._target.vocab_size - 1}, got {token!r}")
        if self._num_tokens + len(tokens) > self._target.max_positions:
            raise StateError(
                f"{where}: expected at most {self._target.max_positions} positions, got {self._num_tokens} held and "
                f"{len(tokens)} new; shorten the prompt or generate fewer tokens"
            )
