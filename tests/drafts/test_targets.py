"""The transformers target: one-pass verify, exact rollback of every layer state, nothing left behind."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from circuit.errors import CheckpointError, ConfigError, StateError
from tests.drafts.tiny_target import VOCAB_SIZE, adapter, cache_tensors, random_tokens, tiny_model, transformers

PROMPT, TAIL = random_tokens(21, seed=1), random_tokens(6, seed=2)
# the widest sum is over 32 values; four layers and the chunked form of the prefill's KDA add up to this
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    # the tensors are tiny: splitting them over threads costs more than it gives where the cores are busy
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def target():
    return adapter.TransformersTarget(tiny_model())


def prefilled(target, tokens):
    sequence = target.open_sequence()
    sequence.prefill(tokens)
    return sequence


def assert_same_states(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


@pytest.mark.parametrize("num_prompt", [1, 3, 21])
@pytest.mark.parametrize("num_run", [1, 2, 6])
def test_rollback_leaves_every_state_as_a_prefill_of_the_kept_tokens(target, num_prompt: int, num_run: int) -> None:
    for num_kept in range(num_run + 1):
        sequence = prefilled(target, PROMPT[:num_prompt])
        sequence.verify(TAIL[:num_run])
        sequence.rollback(num_kept)
        kept = PROMPT[:num_prompt] + TAIL[:num_kept]
        assert sequence.num_tokens == len(kept)
        assert_same_states(cache_tensors(sequence.cache), cache_tensors(prefilled(target, kept).cache))


def test_states_depend_on_the_tokens_rolled_back(target) -> None:
    """Without the rollback the comparison above would fail: the recurrent state has to move."""
    sequence = prefilled(target, PROMPT)
    before = {name: tensor.clone() for name, tensor in cache_tensors(sequence.cache).items()}
    sequence.verify(TAIL)
    after = cache_tensors(sequence.cache)
    for name in ("0.conv", "0.recurrent", "2.conv", "2.recurrent"):
        assert (after[name] - before[name]).abs().max() > 0.01


def test_rollback_to_nothing_is_bitwise(target) -> None:
    sequence = prefilled(target, PROMPT)
    before = {name: tensor.clone() for name, tensor in cache_tensors(sequence.cache).items()}
    sequence.verify(TAIL)
    sequence.rollback(0)
    for name, tensor in cache_tensors(sequence.cache).items():
        assert torch.equal(tensor, before[name]), name


def test_many_rounds_stay_on_the_track_of_plain_decoding(target) -> None:
    sequence, plain = prefilled(target, PROMPT), prefilled(target, PROMPT)
    text = random_tokens(60, seed=3)
    position = 0
    for round_, num_kept in enumerate([1, 3, 2, 5, 4, 1, 1, 5, 2, 3]):
        wrong = random_tokens(5 - num_kept, seed=100 + round_)
        run = sequence.verify(text[position : position + num_kept] + wrong)
        sequence.rollback(num_kept)
        for offset in range(num_kept):
            one = plain.verify([text[position + offset]])
            torch.testing.assert_close(run.logits[offset], one.logits[0], **CLOSE)
            torch.testing.assert_close(run.hiddens[offset], one.hiddens[0], **CLOSE)
        position += num_kept
    assert_same_states(cache_tensors(sequence.cache), cache_tensors(plain.cache))


def test_a_run_gives_hiddens_on_both_sides_of_the_final_norm(target) -> None:
    tokens = PROMPT + TAIL
    with torch.no_grad():
        expected = target.model(input_ids=torch.tensor([tokens]))
    sequence = target.open_sequence()
    first, second = sequence.prefill(PROMPT), sequence.verify(TAIL)
    assert first.logits.shape == (1, VOCAB_SIZE)
    assert second.logits.shape == (len(TAIL), VOCAB_SIZE)
    torch.testing.assert_close(first.logits[0], expected.logits[0, len(PROMPT) - 1], **CLOSE)
    torch.testing.assert_close(second.logits, expected.logits[0, len(PROMPT) :], **CLOSE)
    for run in (first, second):
        assert run.hidden_rows("pre_norm") is run.hiddens
        assert run.hidden_rows("post_norm") is run.normed_hiddens
        with torch.no_grad():
            assert torch.equal(target.model.model.language_model.norm(run.hiddens), run.normed_hiddens)
            torch.testing.assert_close(
                target.model.lm_head(run.normed_hiddens)[-len(run.logits) :], run.logits, atol=1e-6, rtol=1e-5
            )


def leftovers(target) -> list[str]:
    modeling = sys.modules["transformers.models.glm5_next.modeling_glm5_next"]
    found = [name for name, module in target.model.named_modules() if "forward" in vars(module)]
    found += [name for name, module in target.model.named_modules() if module._forward_hooks]
    functions = (modeling.chunk_kimi_delta_attention, modeling.causal_conv1d_fn)
    return found + [function.__module__ for function in functions if function.__module__ != modeling.__name__]


def test_nothing_stays_installed_after_a_verify(target) -> None:
    sequence = prefilled(target, PROMPT)
    sequence.verify(TAIL)
    sequence.rollback(2)
    assert leftovers(target) == []


@pytest.mark.parametrize("layer", range(4))
def test_an_exception_in_a_layer_leaves_the_sequence_as_it_was(target, layer: int) -> None:
    class Broken(RuntimeError):
        pass

    def fail(module, inputs, output):
        raise Broken

    sequence = prefilled(target, PROMPT)
    before = {name: tensor.clone() for name, tensor in cache_tensors(sequence.cache).items()}
    hook = target.model.model.language_model.layers[layer].register_forward_hook(fail)
    try:
        with pytest.raises(Broken):
            sequence.verify(TAIL)
        with pytest.raises(Broken):
            target.open_sequence().prefill(PROMPT)
    finally:
        hook.remove()
    assert leftovers(target) == []
    assert sequence.num_tokens == len(PROMPT)
    for name, tensor in cache_tensors(sequence.cache).items():
        assert torch.equal(tensor, before[name]), name
    with pytest.raises(StateError):
        sequence.rollback(0)
    torch.testing.assert_close(sequence.verify(TAIL).logits, prefilled(target, PROMPT).verify(TAIL).logits)


def test_a_failed_prefill_leaves_the_sequence_empty(target) -> None:
    def fail(module, inputs, output):
        raise KeyboardInterrupt

    sequence = target.open_sequence()
    hook = target.model.model.language_model.layers[2].register_forward_hook(fail)
    try:
        with pytest.raises(KeyboardInterrupt):
            sequence.prefill(PROMPT)
    finally:
        hook.remove()
    assert sequence.num_tokens == 0
    torch.testing.assert_close(sequence.prefill(PROMPT).logits, target.open_sequence().prefill(PROMPT).logits)


def test_sequences_do_not_disturb_each_other(target) -> None:
    first, second = prefilled(target, PROMPT), prefilled(target, TAIL)
    first.verify(TAIL)
    second.verify(PROMPT[:4])
    first.rollback(2)
    second.rollback(1)
    assert_same_states(cache_tensors(first.cache), cache_tensors(prefilled(target, PROMPT + TAIL[:2]).cache))
    assert_same_states(cache_tensors(second.cache), cache_tensors(prefilled(target, TAIL + PROMPT[:1]).cache))


def test_sequences_may_run_in_threads(target) -> None:
    results: dict[int, Tensor] = {}

    def run(number: int) -> None:
        sequence = prefilled(target, PROMPT[: 5 + number])
        for _ in range(8):
            sequence.verify(TAIL[: 2 + number])
            sequence.rollback(1)
        results[number] = sequence.verify(TAIL[:1]).logits

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        expected = prefilled(target, PROMPT[: 5 + number] + TAIL[:1] * 8).verify(TAIL[:1]).logits
        torch.testing.assert_close(results[number], expected, **CLOSE)


def test_positions_end_at_the_config_limit(target) -> None:
    assert target.max_positions == 128
    sequence = prefilled(target, random_tokens(126, seed=4))
    with pytest.raises(StateError, match="verify: expected at most 128 positions, got 126 held and 3 new"):
        sequence.verify(TAIL[:3])
    sequence.verify(TAIL[:2])
    sequence.rollback(1)
    assert sequence.num_tokens == 127
    with pytest.raises(StateError, match="prefill: expected at most 128 positions, got 0 held and 129 new"):
        target.open_sequence().prefill(random_tokens(129, seed=4))


@pytest.mark.parametrize("tokens", [[], [64], [-1], [3, 64], [2.0]], ids=str)
def test_bad_tokens_are_refused(target, tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="prefill: expected"):
        target.open_sequence().prefill(tokens)
    with pytest.raises(ValueError, match="verify: expected"):
        prefilled(target, PROMPT).verify(tokens)


def test_calls_out_of_order_are_refused(target) -> None:
    with pytest.raises(StateError, match="prefill a prompt first"):
        target.open_sequence().verify([5])
    sequence = prefilled(target, PROMPT)
    with pytest.raises(StateError, match="got one with 21 tokens"):
        sequence.prefill(PROMPT)
    with pytest.raises(StateError, match="verify first"):
        sequence.rollback(0)
    sequence.verify(TAIL)
    for num_kept in (-1, 7):
        with pytest.raises(ValueError, match=rf"expected num_kept in 0 \.\. 6, got {num_kept}"):
            sequence.rollback(num_kept)
    sequence.rollback(3)
    with pytest.raises(StateError, match="not rolled back yet"):
        sequence.rollback(3)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A saved checkpoint with tensors of an MTP layer beside the target's, as released ones have."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = tiny_model()
    tensors = {**model.state_dict(), "model.language_model.layers.4.eh_proj.weight": torch.zeros(32, 64)}
    with adapter.no_progress_bars():
        model.save_pretrained(folder, state_dict=tensors)
    return folder


def test_loading_and_running_print_nothing(checkpoint: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from drafts.targets.transformers_target import load_target\n"
        "sequence = load_target(pathlib.Path(sys.argv[1])).open_sequence()\n"
        "sequence.prefill([5, 6, 7]); sequence.verify([8]); sequence.verify([9, 10])\n"
    )
    command = [sys.executable, "-c", program, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == ("", "")


def assert_alike(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """Weights of a file lie otherwise in memory, and some CPUs' libraries order sums by that: the bits may differ."""
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_loaded_target_is_the_saved_model(checkpoint: Path, target, dtype: torch.dtype) -> None:
    verbosity = transformers.utils.logging.get_verbosity()
    loaded = adapter.load_target(checkpoint, dtype=dtype)
    assert transformers.utils.logging.get_verbosity() == verbosity
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert loaded.stop_tokens == {1}
    assert loaded.vocab_size == VOCAB_SIZE
    run = loaded.open_sequence().prefill(PROMPT)
    assert run.logits.dtype == run.hiddens.dtype == dtype
    if dtype == torch.float32:
        assert_alike(run.logits, target.open_sequence().prefill(PROMPT).logits)


def test_a_checkpoint_without_one_of_the_targets_tensors_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    name = "model.language_model.layers.1.self_attn.o_proj.weight"
    tensors = {key: tensor for key, tensor in model.state_dict().items() if key != name}
    with adapter.no_progress_bars():
        model.save_pretrained(tmp_path, state_dict=tensors)
    with pytest.raises(CheckpointError, match=rf"got no {name} \(1 missing\)"):
        adapter.load_target(tmp_path)


def test_a_text_only_checkpoint_may_leave_the_vision_tower_out(tmp_path: Path, target) -> None:
    model = tiny_model()
    tensors = {key: tensor for key, tensor in model.state_dict().items() if ".visual." not in key}
    with adapter.no_progress_bars():
        model.save_pretrained(tmp_path, state_dict=tensors)
    run = adapter.load_target(tmp_path).open_sequence().prefill(PROMPT)
    assert_alike(run.logits, target.open_sequence().prefill(PROMPT).logits)


@pytest.mark.parametrize("content", [None, "{", '{"model_type": "no_such_model"}', '{"model_type": "glm5_next"}'])
def test_a_folder_that_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError) as caught:
        adapter.load_target(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_plain_causal_model_works_too() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))
    target = adapter.TransformersTarget(model)
    sequence = prefilled(target, PROMPT)
    sequence.verify(TAIL)
    sequence.rollback(2)
    expected = prefilled(target, PROMPT + TAIL[:2])
    assert_same_states(cache_tensors(sequence.cache), cache_tensors(expected.cache))
    torch.testing.assert_close(sequence.verify([9, 8]).logits, expected.verify([9, 8]).logits, **CLOSE)


def test_layers_that_do_not_roll_back_exactly_are_refused() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.MistralConfig(vocab_size=64, sliding_window=8, num_key_value_heads=2, **sizes)
    with pytest.raises(ConfigError, match="got DynamicSlidingWindowLayer at layer 0"):
        adapter.TransformersTarget(transformers.MistralForCausalLM(config))
