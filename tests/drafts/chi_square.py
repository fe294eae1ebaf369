"""Pearson's chi-square against exact expected counts, with rare cells pooled."""

from collections.abc import Hashable, Mapping


def chi_square(counts: Mapping[Hashable, int], expected: Mapping[Hashable, float]) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; cells expected fewer than five times are one cell."""
    assert set(counts) <= set(expected), "an outcome that has no probability"
    common = [cell for cell, number in expected.items() if number >= 5]
    pairs = [(counts.get(cell, 0), expected[cell]) for cell in common]
    rare_count = sum(counts.values()) - sum(count for count, _ in pairs)
    rare_expected = sum(expected.values()) - sum(number for _, number in pairs)
    if rare_expected >= 5:
        pairs.append((rare_count, rare_expected))
    return sum((count - number) ** 2 / number for count, number in pairs), len(pairs) - 1


def critical_value(freedom: int) -> float:
    """Return what a chi-square with `freedom` degrees exceeds once in a thousand (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.0902 * spread**0.5) ** 3
