"""What a generation took, as a record and as a line."""

from typing import Any

from drafts.generation import SpeculationMetrics


def draft_ms(metrics: SpeculationMetrics) -> float:
    """Milliseconds the drafter takes a round: its drafts and the rows it catches up with."""
    return 1e3 * metrics.drafter_s / metrics.num_rounds if metrics.num_rounds else 0.0


def target_ms(metrics: SpeculationMetrics) -> float:
    """Milliseconds the target takes a round."""
    return 1e3 * metrics.target_s / metrics.num_rounds if metrics.num_rounds else 0.0


def metrics_record(metrics: SpeculationMetrics) -> dict[str, Any]:
    """Return the numbers of a generation that JSON readers get."""
    return {
        "num_tokens": metrics.num_tokens,
        "num_rounds": metrics.num_rounds,
        "mean_accepted_length": metrics.mean_accepted_length,
        "accepted_per_position": metrics.cumulative_acceptance,
        "accepted_given_previous": metrics.conditional_acceptance,
        "draft_ms": draft_ms(metrics),
        "target_ms": target_ms(metrics),
        "tokens_per_s": metrics.tokens_per_second,
    }


def metrics_lines(metrics: SpeculationMetrics, *, path: str) -> str:
    """Return two lines for people: what was decoded by which path, and how the drafts fared."""
    return (
        f"{metrics.num_tokens} tokens in {metrics.num_rounds} rounds, {metrics.tokens_per_second:.1f} a second, "
        f"drafter {path}\n"
        f"mean accepted length {metrics.mean_accepted_length:.2f} ({percentages(metrics.cumulative_acceptance)}), "
        f"drafter {draft_ms(metrics):.1f} ms, target {target_ms(metrics):.1f} ms a round"
    )


def percentages(shares: tuple[float, ...]) -> str:
    """Return `68 % 52 % 47 %`, one per draft position."""
    return " ".join(f"{100 * share:.0f} %" for share in shares) or "none"
