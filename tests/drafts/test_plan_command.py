"""`circuit plan`: from a config alone to launches, floors, memory; side by side."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.performance_page import PAGE, generated
from compiler import plan_program
from drafts.commands.plan_subject import plan_subject, shipped_configs
from drafts.plan_drafter import bind_without_weights
from drafts.planned_launches import PLANNED_LAUNCHES
from tests.drafts.command_line import circuit
from tests.drafts.tiny_head import tiny_config, tiny_weights, write_checkpoint

RELEASED = "glm-5.3-flash"
REQUIRED = {
    "device",
    "batch",
    "context",
    "bytes_per_draft",
    "floor_us_per_draft",
    "launches_per_draft",
    "lm_head_share",
    "fits",
    "launches",
}


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


def test_released_config_meets_the_design() -> None:
    plan = record(RELEASED, "--device", "h200", "--bandwidth", "4.3TB/s")
    assert plan.keys() >= REQUIRED
    assert round(plan["bytes_per_draft"] / 1e9, 2) == 2.05
    assert plan["floor_us_per_draft"] == pytest.approx(477, rel=0.005)
    assert round(plan["lm_head_share"], 2) == 0.62
    assert plan["launches_per_draft"] == 11
    assert plan["launches_per_chain"] == 33
    assert (plan["device"], plan["batch"], plan["context"], plan["dtype"]) == ("h200", 1, 4096, "bf16")
    assert plan["fits"] is True


def test_launches_add_up_and_name_their_kernels() -> None:
    plan = record(RELEASED)
    launches = plan["launches"]
    assert [launch["region"] for launch in launches][-1] == "lm_head"
    assert sum(launch["bytes_read"] + launch["bytes_written"] for launch in launches) == plan["bytes_per_draft"]
    assert sum(launch["floor_us"] for launch in launches) == pytest.approx(plan["floor_us_per_draft"])
    assert sum(launch["share"] for launch in launches) == pytest.approx(1)
    assert all(launch["numerics"].startswith("tolerance(") for launch in launches)
    names = [launch["region"] for launch in launches]
    assert (names[0], names[4:6], names[-3:]) == (
        "entry",
        ["mla_split", "combine_values"],
        ["experts_up", "experts_down", "lm_head"],
    )
    assert [launch["kernel"] for launch in launches if launch["region"] == "o_proj"] == ["gemv.gemv_residual"]
    assert not [launch for launch in launches if launch["kernel"] == "no rule"]
    assert "speeds not measured" in circuit("plan", RELEASED).out


def test_planned_launches_hold_every_call_of_every_form_of_a_draft() -> None:
    for share in ("off", "pools_and_new_rows", "exact_set"):
        plan = record(RELEASED, "--levers", f"index_share={share}")
        for launches in (plan["launches"], plan["following_launches"]):
            assert len(launches) == 11
            assert {launch["region"] for launch in launches} <= {*PLANNED_LAUNCHES, "experts_up"}


@pytest.mark.parametrize("batch, context", [(1, 4096), (3, 4096), (16, 131072)])
def test_launches_move_the_bytes_of_the_compilers_regions(batch: int, context: int) -> None:
    subject = plan_subject(RELEASED, dtype_name=None)
    binding = bind_without_weights(subject.config, subject.decisions)
    blocks = context // binding.state_layout.block_size
    dims = {"n": batch, "max_blocks": blocks, "num_blocks": batch * blocks + 1, "num_sequences": batch + 1}
    compiled = plan_program(binding.step(is_first=True), name="draft", backend="triton", dims={**binding.dims, **dims})
    plan = record(RELEASED, "--batch", batch, "--context", context)
    assert len(compiled.launches) == plan["launches_per_draft"]
    # a region of two launches does not count what the first hands the second
    handed = 2 * batch * 2 * 64 * 512
    assert plan["bytes_per_draft"] - compiled.bytes_read - compiled.bytes_written == pytest.approx(handed, rel=0.1)
    assert sum(launch["flops"] for launch in plan["launches"]) == compiled.flops


def test_reference_runs_every_node_by_itself_and_reads_no_less() -> None:
    planned, apart = record(RELEASED), record(RELEASED, "--backend", "reference")
    assert apart["launches_per_draft"] == len(apart["launches"]) > 40
    assert planned["bytes_per_draft"] < apart["bytes_per_draft"] < planned["bytes_per_draft"] * 1.001
    assert apart["launch_gap_share"] > 3 * planned["launch_gap_share"]
    assert {launch["numerics"] for launch in apart["launches"]} == {"reference"}


def test_inductor_is_one_program_with_the_registered_lowerings() -> None:
    plan = record("demo", "--backend", "inductor", "--device", "l40s")
    assert (plan["launches_per_draft"], plan["launches_per_chain"]) == (1, 1)
    by_type = {launch["node_types"][0]: launch for launch in plan["launches"]}
    assert by_type["RoutedExperts"]["numerics"].startswith("tolerance(")
    assert by_type["RmsNorm"]["kernel"] == "reference, traced"


def test_every_batch_and_context_is_a_case_and_the_first_stands_at_the_top() -> None:
    plan = record(RELEASED, "--batch", "16,1,4", "--context", "4k, 128K")
    assert [(case["batch"], case["context"]) for case in plan["cases"]] == [
        (batch, context) for batch in (1, 4, 16) for context in (4096, 131072)
    ]
    assert {key: plan[key] for key in REQUIRED} == {key: plan["cases"][0][key] for key in REQUIRED}
    experts = {case["batch"]: case["distinct_experts"] for case in plan["cases"]}
    assert [round(experts[batch], 1) for batch in (1, 4, 16)] == [8.0, 30.7, 104.5]
    assert record(RELEASED, "--context", "131072")["context"] == 131072


def test_what_does_not_fit_says_so_and_how_much_would() -> None:
    plan = record(RELEASED, "--device", "rtx-5090", "--batch", "4096", "--context", "64k")
    assert plan["fits"] is False
    assert 0 < plan["memory"]["largest_batch"] < 4096
    assert record(RELEASED, "--device", "rtx-5090", "--reserve", "31")["memory"]["largest_batch"] == 0
    memory = plan["memory"]
    # latents and pool keys of a token, half a kibibyte wide and a quarter of 128
    assert memory["cache_per_token"] == 2 * 512 + 2 * 128 / 4
    parts = ("own_weights", "shared_weights", "cache", "arena", "reserved")
    assert memory["total"] == sum(memory[part] for part in parts)


def test_index_share_takes_the_indexer_out_of_later_drafts_only() -> None:
    shared, alone = record(RELEASED), record(RELEASED, "--levers", "index_share=off")
    assert alone["bytes_per_chain"] > shared["bytes_per_chain"]
    assert alone["bytes_per_draft"] <= shared["bytes_per_draft"]


def test_device_without_a_launch_gap_says_that_it_is_unknown() -> None:
    plan = record(RELEASED, "--device", "gb10")
    assert plan["launch_gap_share"] is None
    assert "no public figure: measured copy rate" in circuit("plan", RELEASED, "--device", "gb10").out
    given = record(RELEASED, "--device", "gb10", "--launch-gap", "2")
    assert given["launch_gap_share"] == pytest.approx(22 / (22 + given["floor_us_per_draft"]))


def test_this_machine_is_measured_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "circuit plan --measure" in error(RELEASED, "--device", "this-machine")
    monkeypatch.setattr("compiler.devices.measure.COPY_BYTES", 1 << 12)
    outcome = circuit("plan", "--measure", "--json")
    assert outcome.record["file"] == str(cache / "this-machine.toml")
    plan = record("demo", "--device", "this-machine")
    assert plan["bandwidth_kind"] == "measured copy rate"
    assert plan["bandwidth_gbps"] == pytest.approx(outcome.record["copy_rate_gbps"])


def test_measuring_before_a_plan_prints_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.devices.measure.COPY_BYTES", 1 << 12)
    outcome = circuit("plan", "demo", "--measure", "--json")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    assert outcome.record["device"] == "this-machine"
    assert "| copy_rate_gbps |" in circuit("plan", "--measure", "--md").out
    text = circuit("plan", "demo", "--device", "this-machine").out
    assert "not measured: " in text
    assert "no public figure" not in text


def test_a_config_by_itself_a_folder_and_a_name_give_one_plan(tmp_path: Path) -> None:
    config = tiny_config()
    folder = write_checkpoint(tmp_path / "checkpoint", config, tiny_weights(config))
    alone = tmp_path / "alone.json"
    alone.write_text((folder / "config.json").read_text())
    first, second = record(alone), record(folder)
    assert {**first, "subject": "", "cases": []} == {**second, "subject": "", "cases": []}
    assert first["context"] == 512  # what the model has, less than the default
    assert shipped_configs() == (RELEASED,)


def test_a_chain_has_its_own_launches_and_gaps() -> None:
    plan = record(RELEASED, "--drafts", "5")
    assert plan["launches_per_chain"] == 55
    gaps = 55 * 1.3
    assert plan["launch_gap_share_per_chain"] == pytest.approx(gaps / (gaps + plan["floor_us_per_chain"]))
    text = circuit("plan", RELEASED, "--drafts", "5").out
    row = text[text.index("a chain of 5 drafts") :].splitlines()[2].split()
    assert (row[0], row[1], row[4]) == ("1", "4,096", "55")
    assert row[6] == f"{plan['floor_us_per_chain'] + gaps:,.0f}"


def test_compare_puts_two_sides_beside_each_other() -> None:
    outcome = circuit("plan", RELEASED, "--compare", "h200", "b200", "--json")
    sides = outcome.record
    assert (sides["a"]["device"], sides["b"]["device"]) == ("h200", "b200")
    assert sides["b"]["floor_us_per_draft"] == pytest.approx(sides["a"]["floor_us_per_draft"] * 4.8 / 8)
    text = circuit("plan", RELEASED, "--compare", "index_share=off", "batch=4,context=8k").out
    assert "B  batch=4,context=8k: NVIDIA H200" in text
    assert "drafts 2..K" in text


def test_compare_takes_every_setting_and_names_what_was_planned() -> None:
    outcome = circuit("plan", RELEASED, "--compare", "reserve=130,launch_gap=2", "mtp_kv_exact=false", "--json")
    a, b = outcome.record["a"], outcome.record["b"]
    assert (a["subject"], b["subject"]) == (RELEASED, RELEASED)
    assert (a["memory"]["reserved"], a["launch_gap_us"]) == (130_000_000_000, 2)
    assert (b["memory"]["reserved"], b["launch_gap_us"]) == (0, 1.3)
    text = circuit("plan", RELEASED, "--compare", "h200", "mtp_kv_exact=false").out
    assert "mtp_kv_exact: no bytes of a draft depend on it" in text
    # what a side sets stands in place of what was set for both
    given = ("--levers", "index_share=off", "--compare", "index_share=checkpoint", "h200", "--json")
    sides = circuit("plan", RELEASED, *given).record
    assert sides["a"]["bytes_per_chain"] < sides["b"]["bytes_per_chain"]


def test_compare_of_a_side_with_itself_lists_no_launches() -> None:
    text = circuit("plan", RELEASED, "--compare", "h200", "device=h200").out
    assert "differ" not in text
    assert "1.00" in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_screen(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    screens = [
        circuit("plan", RELEASED, "--batch", "1,16", "--context", "4k,128k", "--full").out,
        circuit("plan", RELEASED, "--backend", "reference").out,
        circuit("plan", RELEASED, "--compare", "h200", "b200").out,
    ]
    for text in screens:
        assert max(map(len, text.splitlines())) <= width
        # a number that was cut off ends in an ellipsis
        assert "…" not in text
    header = next(line for line in screens[0].splitlines() if line.startswith("launch "))
    assert ("numerics" in header) == (width == 120)


def test_markdown_has_a_rule_under_every_header() -> None:
    lines = circuit("plan", RELEASED, "--md").out.splitlines()
    tables = [index for index, line in enumerate(lines) if line.startswith("| ---") or line.startswith("| :")]
    assert len(tables) >= 4
    for index in tables:
        assert lines[index - 1].count("|") == lines[index].count("|") == lines[index + 1].count("|")


def test_performance_page_is_what_the_plan_says_now() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert generated(page) == page, "run python benchmarks/performance_page.py"
    with pytest.raises(ValueError, match="section 'cuts'"):
        generated(page.replace("<!-- cuts: generated -->", ""))
