"""Bisecting the Triton backend: the one region whose launches are wrong is named, and its repro replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compiler import read_repro, registry, replay, write_repro
from compiler.triton import Launch, LaunchPartRunner
from compiler.triton.emission import RegionEmission
from drafts.bisect_drafter import DrafterBisection
from drafts.launch_steps import fused_at
from drafts.script import Script, prompt_script
from tests.drafts.drafter_twin import make_proposer, make_text
from tests.drafts.test_side_by_side import bind

pytestmark = pytest.mark.interpreted

# a constant of one of the rule's launches, and what a slip would make of it
FAULTS = {
    "in_proj": ("EPS", lambda eps: 0.1),
    "sparse_mla": ("SCALE", lambda scale: scale * 1.1),
    "experts": ("LIMIT", lambda limit: limit / 3),
}


def scripts() -> list[Script]:
    text = make_text(make_proposer(), 19, seed=19)
    return [prompt_script("prompt", text.tokens.tolist(), text.hiddens, num_drafts=1)]


def plant(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Have the rule's lowering start its launches with another constant."""
    key = ("triton", rule)
    kept = registry._RULES[key]
    name, change = FAULTS[rule]

    def lowered(emit: RegionEmission) -> None:
        before = len(emit._emitted.launches)
        kept.function(emit)
        made = emit._emitted.launches
        touched = [index for index in range(before, len(made)) if name in made[index].constants]
        assert touched, f"no launch of {rule} has a constant {name}"
        for index in touched:
            made[index] = _changed(made[index], name, change)

    monkeypatch.setitem(registry._RULES, key, replace(kept, function=lowered))


def _changed(launch: Launch, name: str, change: Callable[[float], float]) -> Launch:
    value = launch.constants[name]
    assert isinstance(value, float)
    return replace(launch, constants={**launch.constants, name: change(value)})


def test_faithful_launches_have_no_culprit() -> None:
    binding = bind()
    search = DrafterBisection(binding, LaunchPartRunner(), prepare=fused_at(binding))
    assert search.find(scripts()) is None


@pytest.mark.parametrize("rule", FAULTS)
def test_region_at_fault_is_found_and_its_repro_replays(
    rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binding = bind()
    runner = LaunchPartRunner()
    with monkeypatch.context() as planted:
        plant(planted, rule)
        found = DrafterBisection(binding, runner, prepare=fused_at(binding)).find(scripts())
        assert found is not None
        assert len(found.calls) == 1
        assert f"rule='{rule}'" in found.calls[0]
        write_repro(
            tmp_path / "repro",
            found.run,
            found.culprit,
            runner,
            dtype=binding.config.dtype,
            seen_in=found.seen_in,
        )
        assert replay(read_repro(tmp_path / "repro"), runner).is_reproduced
    assert not replay(read_repro(tmp_path / "repro"), runner).is_reproduced
