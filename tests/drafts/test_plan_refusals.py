"""`circuit plan`: what it refuses and in which words, and the gain of a round."""

import json
from pathlib import Path
from typing import Any

import pytest

from drafts.commands.plan_request import counts, rate
from tests.drafts.command_line import circuit
from tests.drafts.tiny_head import config_document

RELEASED = "glm-5.3-flash"
SPEEDUP = (RELEASED, "--speedup", "--acceptance", "0.8,0.5,0.1", "--verify-us", "9000,9100")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "draft-circuit"


def record(*arguments: object) -> dict[str, Any]:
    outcome = circuit("plan", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.record


def error(*arguments: object) -> str:
    outcome = circuit("plan", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    return outcome.error


@pytest.mark.parametrize("key", ["kv_lora_rank", "vocab_size", "num_experts_per_tok"])
def test_config_that_lacks_a_key_says_which(tmp_path: Path, key: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_document(**{key: None})))
    assert f"text_config.{key}: expected a value, got no such key" in error(file)


@pytest.mark.parametrize(
    "sizes, fault",
    [
        ({"n_routed_experts": 2**31 - 1}, "n_routed_experts: expected up to 65,536"),
        ({"hidden_size": 2**31 - 1}, "weight eh_proj: expected a size that a memory could hold"),
        ({"vocab_size": 2**31 - 1, "hidden_size": 2**24}, "weight embed_tokens: expected a size"),
    ],
)
def test_sizes_that_no_memory_holds_are_refused(tmp_path: Path, sizes: dict[str, int], fault: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_document(**sizes)))
    line = error(file)
    assert fault in line
    assert str(file) in line


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_circuit_document_is_told_from_a_config(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"head{suffix}"
    document = {"circuit": "head", "format": 1, "inputs": {}}
    file.write_text(json.dumps(document, indent=2))
    assert "expected a config.json, got a circuit document" in error(file)


def test_speedup_takes_draft_times_from_the_plan() -> None:
    given = ("--speedup", "--acceptance", "0.8,0.5,0.1", "--verify-us", "9000,9100")
    outcome = circuit("plan", RELEASED, *given, "--json")
    chain = record(RELEASED)
    draft_us = outcome.record["predictions"][2]["draft_us"]
    assert draft_us == pytest.approx(chain["floor_us_per_chain"] + 33 * chain["launch_gap_us"])
    assert (
        outcome.record["best_num_drafts"]
        == max(outcome.record["predictions"], key=lambda one: one["speedup"])["num_drafts"]
    )
    assert "best" in circuit("plan", RELEASED, *given).out


def test_speedup_says_when_no_k_pays() -> None:
    given = ("--speedup", "--acceptance", "0.1", "--verify-us", "100", "--draft-us", "50")
    assert "no K pays" in circuit("plan", *given).out


def demo_record() -> dict[str, Any]:
    return {
        "num_drafts": 2,
        "accepted_given_previous": [0.8, 0.5],
        "draft_ms": {"circuit": 1.0},
        "target_ms": {"plain": 9.0, "circuit": 11.0},
        "tokens_per_s": {"plain": 100.0, "circuit": 165.0},
    }


def test_speedup_from_a_demo_record_stands_beside_what_its_loop_measured(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    file.write_text(json.dumps(demo_record()))
    found = circuit("plan", "--speedup", "--measured", file, "--json").record
    assert found["measured_speedup"] == pytest.approx(1.65)
    one, two = found["predictions"]
    assert two["speedup"] == pytest.approx((1 + 0.8 + 0.4) * 9 / 12)
    assert one["speedup"] == pytest.approx(1.8 * 9 / (0.5 + 10))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{}",
        '{"num_drafts": 3}',
        *(
            json.dumps({**demo_record(), **wrong})
            for wrong in (
                {"accepted_given_previous": [1]},
                {"accepted_given_previous": None},
                {"num_drafts": 2.9},
                {"num_drafts": float("inf")},
                {"num_drafts": True, "accepted_given_previous": [1]},
                {"tokens_per_s": {"plain": 100.0, "circuit": 0}},
                {"tokens_per_s": {"plain": 0, "circuit": 100.0}},
                {"tokens_per_s": {"plain": 100.0, "circuit": float("nan")}},
                {"tokens_per_s": None},
            )
        ),
    ],
)
def test_speedup_refuses_what_is_no_demo_record(tmp_path: Path, text: str) -> None:
    file = tmp_path / "demo.json"
    file.write_text(text)
    assert str(file) in error("--speedup", "--measured", file)


@pytest.mark.parametrize(
    "arguments, fault",
    [
        ((), "expected a checkpoint folder, a config.json or one of glm-5.3-flash, demo"),
        (("nosuch",), "got no such path"),
        (("glm-5.3-flsh",), "did you mean glm-5.3-flash?"),
        ((RELEASED, "--device", "h20O"), "did you mean h200"),
        ((RELEASED, "--device", ""), "the known ones are a100-80gb"),
        ((RELEASED, "--context", "128q"), "--context: expected numbers from 1 to 1,048,576"),
        ((RELEASED, "--context", "4k,,8k"), "--context"),
        ((RELEASED, "--context", "2m"), "--context"),
        ((RELEASED, "--context", "-1"), "--context"),
        ((RELEASED, "--context", "2"), "expected room for 3 drafts"),
        ((RELEASED, "--batch", "0"), "--batch"),
        ((RELEASED, "--batch", "9999999999999"), "--batch"),
        ((RELEASED, "--levers", "index_shar=off"), "did you mean index_share?"),
        ((RELEASED, "--levers", "index_share"), "expected index_share=VALUE"),
        ((RELEASED, "--levers", "index_share=on"), "'checkpoint' or 'off'"),
        ((RELEASED, "--levers", "mtp_kv_exact=3"), "mtp_kv_exact"),
        (
            (RELEASED, "--levers", "draft_vocab=/no/list"),
            "--levers: draft_vocab /no/list: expected a text file with one token id a line, got No such file",
        ),
        ((RELEASED, "--bandwidth", "4.3"), "a rate such as 4.3TB/s"),
        ((RELEASED, "--bandwidth", "0TB/s"), "a rate such as 4.3TB/s"),
        ((RELEASED, "--speedup"), "--acceptance or --measured"),
        ((RELEASED, "--speedup", "--acceptance", "1.5", "--verify-us", "1"), "--acceptance: expected numbers"),
        ((RELEASED, "--speedup", "--acceptance", "0.5", "--verify-us", "0"), "verify_us: expected times above 0"),
        ((RELEASED, "--speedup", "--acceptance", "0.5", "--verify-us", "nan"), "--verify-us"),
        ((RELEASED, "--acceptance", "0.5"), "belongs to --speedup"),
        ((RELEASED, "--compare", "h200", "zz"), "device 'zz'"),
        ((RELEASED, "--compare", "h200", "foo=3"), "no setting 'foo'"),
        ((RELEASED, "--compare", "h200", "batch=1,4"), "one batch and one context a side"),
        ((RELEASED, "--compare", "h200", "drafts=99"), "drafts: expected 1 to 16"),
        ((RELEASED, "--compare", "h200", "backend=cuda"), "backend: expected triton or inductor or reference"),
        ((RELEASED, "--speedup", "--compare", "h200", "b200"), "one of --speedup and --compare"),
        (("",), "expected a checkpoint folder, a config.json or one of"),
        (("GLM-5.3-FLASH",), "did you mean glm-5.3-flash?"),
        ((RELEASED, "--bandwidth", "0.000000001GB/s"), "from 1 MB/s to 1,000 TB/s"),
        ((RELEASED, "--launch-gap", "inf"), "--launch-gap"),
        ((RELEASED, "--launch-gap", "nan"), "--launch-gap"),
        ((RELEASED, "--reserve", "nan"), "--reserve"),
        ((RELEASED, "--levers", "index_share=off,index_share=checkpoint"), "expected index_share once"),
        (
            (RELEASED, "--levers", "propose_batch_max=0"),
            "propose_batch_max: expected greater than or equal to 1, got 0",
        ),
        ((RELEASED, "--compare", "h200", ""), "expected settings such as h200"),
        ((RELEASED, "--compare", "h200,", "b200"), "expected settings such as h200"),
        ((RELEASED, "--compare", "h200,b200", "l40s"), "expected one device a side"),
        ((RELEASED, "--compare", "batch=4,batch=8", "l40s"), "expected one batch a side"),
        ((RELEASED, "--compare", "reserve=x", "l40s"), "--compare: reserve: expected numbers"),
        ((RELEASED, "--compare", "launch_gap=inf", "l40s"), "--compare: launch_gap: expected numbers"),
        ((RELEASED, "--full", "--compare", "h200", "b200"), "one of --full and --compare"),
        ((RELEASED, "--full", "--speedup"), "one of --full and --speedup"),
        ((RELEASED, "--measure", "--speedup"), "one of --measure and --speedup"),
        ((RELEASED, "--measure", "--compare", "h200", "b200"), "one of --measure and --compare"),
        ((RELEASED, "--measure", "--device", "h200"), "leave out --device"),
        (("--measure", "--batch", "4"), "name what to plan"),
        ((*SPEEDUP, "--batch", "1,4"), "expected one batch and one context"),
        ((*SPEEDUP, "--drafts", "2"), "leave out --drafts"),
        ((*SPEEDUP, "--context", "2"), "expected room for 3 drafts"),
        ((*SPEEDUP, "--draft-us", "440"), "nothing is planned; leave out X"),
        (("--speedup", "--measured", "demo.json", "--batch", "4"), "nothing is planned; leave out --batch"),
        ((RELEASED, "--speedup", "--acceptance", "0.5", "--verify-us", "1e300"), "--verify-us: expected numbers"),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line(arguments: tuple[object, ...], fault: str) -> None:
    assert fault in error(*arguments)


@pytest.mark.parametrize(
    "text, found", [("4096", (4096,)), ("4k,128k", (4096, 131072)), (" 1K , 1m", (1024, 1 << 20)), ("3,1,3", (1, 3))]
)
def test_counts_are_read_with_and_without_suffix(text: str, found: tuple[int, ...]) -> None:
    assert counts(text, "--context", high=1 << 20) == found


@pytest.mark.parametrize("text", ["4.3TB/s", "4.3t", "4.3 TB/s", "4300GB/s", "4300 g"])
def test_rates_are_read_in_either_unit(text: str) -> None:
    assert rate(text) == pytest.approx(4.3e12)
