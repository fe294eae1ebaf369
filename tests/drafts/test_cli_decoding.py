"""The console script's commands that decode: run, parity and demo, over a tiny random checkpoint."""

import shutil
from pathlib import Path

import pytest
import torch

from drafts.commands.stream import TokenStream
from tests.drafts.command_line import circuit
from tests.drafts.tiny_checkpoint import MAX_POSITIONS, write_tiny_checkpoint

PROMPT = "def read(path):\n    return "
NUM_TOKENS = 9
# a checkpoint's circuit is compiled otherwise; test_compiled_runner.py runs it so
INTERPRETED = ("--backend", "reference")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="module")
def without_stop(checkpoint: Path) -> Path:
    """The same checkpoint with no token that ends a text, so that every run is as long as asked for."""
    folder = checkpoint.parent / "endless"
    shutil.copytree(checkpoint, folder)
    config = (folder / "config.json").read_text().replace('"eos_token_id": 1', '"eos_token_id": null')
    (folder / "config.json").write_text(config)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def test_run_is_the_same_text_eager_and_as_a_circuit(without_stop: Path) -> None:
    arguments = ("--prompt", PROMPT, "--max-tokens", NUM_TOKENS, *INTERPRETED)
    records = {
        form: circuit("run", without_stop, *arguments, form, "--json").record for form in ("--eager", "--circuit")
    }
    assert records["--eager"]["path"] == "eager"
    assert records["--circuit"]["path"] == "circuit:reference"
    for record in records.values():
        assert len(record["tokens"]) == NUM_TOKENS
        assert record["finish_reason"] == "length"
        assert record["prompt_tokens"] == len(PROMPT)
        assert record["mean_accepted_length"] >= 1
    assert records["--eager"]["text"] == records["--circuit"]["text"]


def test_run_prints_prompt_and_text_alone_on_standard_output(without_stop: Path) -> None:
    arguments = ("run", without_stop, "--prompt", PROMPT, "--max-tokens", 5, *INTERPRETED)
    outcome = circuit(*arguments)
    assert outcome.code == 0
    text = circuit(*arguments, "--json").record["text"]
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
    assert outcome.out == f"{PROMPT}{shown}\n"
    assert "mean accepted length" in outcome.err


def test_run_samples_alike_for_one_seed(without_stop: Path) -> None:
    options = ("--max-tokens", NUM_TOKENS, "--temperature", "2", "--json", *INTERPRETED)
    arguments = ("run", without_stop, "--prompt", PROMPT, *options)
    texts = [circuit(*arguments, "--seed", seed).record["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_prompt_beyond_the_context_is_one_line(checkpoint: Path) -> None:
    for command in ("run", "parity"):
        outcome = circuit(command, checkpoint, "--prompt", "a" * (MAX_POSITIONS + 1))
        assert outcome.code == 2
        assert f"{MAX_POSITIONS} positions" in outcome.error


def test_broken_tokenizer_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint, folder)
    for text in ("", "{}", None):
        (folder / "tokenizer.json").unlink()
        if text is not None:
            (folder / "tokenizer.json").write_text(text)
            assert "tokenizer.json" in circuit("run", folder, "--prompt", "a").error
    assert "tokenizer.json" in circuit("run", folder, "--prompt", "a").error


def test_parity_reports_every_edge_within_bound(checkpoint: Path) -> None:
    outcome = circuit("parity", checkpoint, "--prompt", PROMPT, "--drafts", 2, "--json")
    record = outcome.record
    assert outcome.code == 0
    assert record["ok"] is True
    assert record["ids_equal"] is True
    names = [edge["name"] for edge in record["edges"]]
    assert {"eh_out", "selected", "attn_out", "moe_out", "logits"} <= set(names)
    assert record["worst_edge"]["name"] in names
    assert record["worst_edge"]["relative_l2"] <= record["bound"]["relative_l2"]


def test_parity_misses_with_exit_1_and_names_the_edge(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(self: object, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight) + 1e-2

    monkeypatch.setattr("nodes.Linear.reference", shifted)
    outcome = circuit("parity", checkpoint, "--prompt", PROMPT, "--drafts", 1, "--json")
    assert outcome.code == 1
    assert outcome.record["ok"] is False
    assert outcome.record["worst_edge"]["name"] == "eh_out"
    assert outcome.record["worst_edge"]["is_within_bound"] is False


def test_demo_compares_three_ways_of_decoding(without_stop: Path) -> None:
    arguments = ("demo", "--model", without_stop, "--prompt", PROMPT, "--max-tokens", NUM_TOKENS)
    outcome = circuit(*arguments, "--json")
    record = outcome.record
    assert outcome.code == 0
    assert record["identical_to_plain"] is True
    assert record["mean_accepted_length"].keys() == {"eager", "circuit"}
    assert record["mean_accepted_length"]["eager"] == record["mean_accepted_length"]["circuit"] >= 1
    assert len(record["accepted_per_position"]) == 3
    assert record["draft_ms"].keys() == {"eager", "circuit"}
    assert record["tokens_per_s"].keys() == {"plain", "eager", "circuit"}
    assert record["path_counters"]["propose.circuit:reference"] > 0
    assert "propose.eager" not in record["path_counters"]
    text = circuit(*arguments).out
    assert text.endswith("identical to plain decoding: yes\n")
    assert PROMPT in text


def test_interrupt_is_one_line_and_exit_130(without_stop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: TokenStream, token: int) -> None:
        # what Ctrl-C becomes, in the middle of decoding; the signal itself is ignored where a shell started the tests
        # in its background
        raise KeyboardInterrupt

    monkeypatch.setattr(TokenStream, "take", interrupt)
    outcome = circuit("run", without_stop, "--prompt", "a", "--max-tokens", NUM_TOKENS, *INTERPRETED)
    assert outcome.code == 130
    assert outcome.out.startswith("a")
    assert outcome.err == "interrupted\n"


def test_error_while_decoding_begins_a_line_of_its_own(without_stop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no more")

    monkeypatch.setattr(TokenStream, "take", fail)
    outcome = circuit("run", without_stop, "--prompt", PROMPT, "--max-tokens", 5, *INTERPRETED)
    assert outcome.code == 2
    assert outcome.error == "no more"
    assert outcome.out == f"{PROMPT}\n"
