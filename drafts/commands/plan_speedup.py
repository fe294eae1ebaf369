"""`circuit plan --speedup`: the stated model of a round, fed with given numbers or with a demo's record."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from circuit import CircuitError
from compiler import RoundModel
from drafts.commands.grid import Grid
from drafts.commands.plan_request import SpeedupRequest, floats
from drafts.plan_drafter import DraftPlan

MAX_POSITIONS = 64
MAX_US = 1e9


def round_model(asked: SpeedupRequest, planned: DraftPlan | None) -> tuple[RoundModel, float | None]:
    """Return the model of a round and, from a demo's record, the gain it measured.

    Draft times come from --draft-us, else from the plan: its floor and gaps, which is the least they can be.
    """
    if asked.measured is not None:
        if asked.acceptance or asked.verify_us or asked.draft_us:
            raise ValueError("--measured: expected no --acceptance, --verify-us or --draft-us beside it, got one")
        return model_of_record(read_record(asked.measured), where=str(asked.measured))
    for option, given in (("--acceptance", asked.acceptance), ("--verify-us", asked.verify_us)):
        if given is None:
            raise ValueError(f"--speedup: expected {option} or --measured FILE, got none")
    assert asked.acceptance is not None
    assert asked.verify_us is not None
    acceptance = floats(asked.acceptance, "--acceptance", high=1, example="0.7,0.6")
    if len(acceptance) > MAX_POSITIONS:
        raise ValueError(f"--acceptance: expected up to {MAX_POSITIONS} positions, got {len(acceptance)}")
    verify_us = floats(asked.verify_us, "--verify-us", high=MAX_US, example="9000,9300")
    if asked.draft_us is not None:
        draft_us = floats(asked.draft_us, "--draft-us", high=MAX_US, example="440,880")
    else:
        assert planned is not None
        draft_us = tuple(planned.chain_us(count) for count in range(1, len(acceptance) + 1))
    return RoundModel(acceptance, draft_us, verify_us), None


def model_of_record(record: dict[str, Any], *, where: str) -> tuple[RoundModel, float]:
    """Return the model that a `circuit demo --json` record feeds, and the gain that its loop measured.

    The record knows one K: other chains are taken in proportion, and a target pass between plain decoding's one token
    and the verify's K + 1 on a straight line.
    """
    try:
        num_drafts = record["num_drafts"]
        acceptance = tuple(float(share) for share in record["accepted_given_previous"])
        draft_us = 1e3 * float(record["draft_ms"]["circuit"])
        plain_us = 1e3 * float(record["target_ms"]["plain"])
        verify_us = 1e3 * float(record["target_ms"]["circuit"])
        tokens_per_s = record["tokens_per_s"]
        measured = float(tokens_per_s["circuit"]) / float(tokens_per_s["plain"])
    except KeyError as error:
        raise CircuitError(f"{where}: expected what `circuit demo --json` prints, got no {error} in it") from None
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise CircuitError(f"{where}: expected what `circuit demo --json` prints, got a fault: {error}") from None
    if not 0 < measured < math.inf:
        raise CircuitError(f"{where}: tokens_per_s: expected rates above 0, got {tokens_per_s}; run the demo again")
    if type(num_drafts) is not int or not 1 <= num_drafts <= MAX_POSITIONS:
        raise CircuitError(f"{where}: num_drafts: expected 1 to {MAX_POSITIONS}, got {num_drafts!r}")
    if len(acceptance) != num_drafts:
        raise CircuitError(f"{where}: expected one acceptance for each of {num_drafts} drafts, got {len(acceptance)}")
    slope = (verify_us - plain_us) / num_drafts
    return (
        RoundModel(
            acceptance=acceptance,
            draft_us=tuple(draft_us * count / num_drafts for count in range(1, num_drafts + 1)),
            verify_us=tuple(plain_us + slope * extra for extra in range(num_drafts + 1)),
        ),
        measured,
    )


def read_record(file: Path) -> dict[str, Any]:
    """Read a demo's record; CircuitError, one line, for a file that holds none."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CircuitError(f"{file}: expected a demo's record, got {error.strerror}; check the path") from None
    except (ValueError, RecursionError) as error:
        raise CircuitError(f"{file}: expected what `circuit demo --json` prints, got no JSON: {error}") from None
    if not isinstance(record, dict):
        raise CircuitError(f"{file}: expected a JSON object, got {type(record).__name__}")
    return record


def speedup_grid(model: RoundModel, where: str, *, measured_speedup: float | None) -> list[Grid | str]:
    """Return the table of every K, the best one marked, and the model in a line."""
    best = model.best().num_drafts
    rows = tuple(
        (
            f"{one.num_drafts}",
            f"{model.acceptance[one.num_drafts - 1]:.0%}",
            f"{one.tokens:.2f}",
            f"{one.draft_us:,.0f}",
            f"{one.verify_us:,.0f}",
            f"{one.round_us:,.0f}",
            f"{one.speedup:.2f}x",
            "best" if one.num_drafts == best else "",
        )
        for one in model.predictions()
    )
    columns = ("K", "stands", "tokens", "draft us", "verify us", "round us", "gain", " ")
    lines: list[Grid | str] = [
        f"gain over plain decoding, {where}",
        Grid(columns, rows, texts=(" ",)),
        "tokens = 1 + a1 + a1 a2 + ..; gain = tokens * verify(1) / (draft(K) + verify(K + 1)). Prefill and a server's "
        "own work a round are not in it",
    ]
    if model.best().speedup < 1:
        lines.append("no K pays: plain decoding is faster than every round")
    if measured_speedup is not None:
        modelled = model.predictions()[-1].speedup
        lines.append(
            f"the loop measured {measured_speedup:.2f}x at K {len(model.acceptance)}, the model says {modelled:.2f}x: "
            f"{modelled / measured_speedup - 1:+.1%}"
        )
    return lines


def speedup_record(model: RoundModel, planned: DraftPlan | None, *, measured_speedup: float | None) -> dict[str, Any]:
    """Return the predictions as one JSON object."""
    return {
        "device": None if planned is None else planned.device.name,
        "best_num_drafts": model.best().num_drafts,
        "speedup": model.best().speedup,
        "measured_speedup": measured_speedup,
        "model": asdict(model),
        "predictions": [{**asdict(one), "round_us": one.round_us} for one in model.predictions()],
    }
