"""The best bucket sizes for a histogram, for every number of buckets, by dynamic programming.

Only sizes that were seen can be buckets: lowering one to the largest size it serves never pads
more. With the sizes s[0] < s[1] < ... and calls w, a bucket at s[j] that serves s[i+1..j] costs
s[j] * (W[j] - W[i]) rows, where W sums w. The real rows are the same in every plan and left out. So

    best[k][j] = min over i of best[k-1][i] + s[j] * (W[j] - W[i])

and each choice of i is a straight line in s[j] with slope -W[i]. Slopes fall and s rises, so the
lower envelope of the lines is walked once: k buckets over m sizes take k * m steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def best_sizes(histogram: Mapping[int, int], n_most: int) -> Iterator[tuple[int, ...]]:
    """The best set of 1, 2, ... ``n_most`` buckets, in that order.

    Args:
        histogram: calls by size, all counts above zero; not empty.
        n_most: at most as many as there are sizes.
    """
    sizes = sorted(histogram)
    calls = [0]  # calls[j]: calls of the first j sizes together
    for size in sizes:
        calls.append(calls[-1] + histogram[size])
    m = len(sizes)
    # cost[j]: rows computed for the first j sizes with the buckets so far; j is a bucket.
    cost = [0.0] + [float(sizes[j - 1] * calls[j]) for j in range(1, m + 1)]
    chosen: list[list[int]] = [[0] * (m + 1)]
    yield (sizes[-1],)
    for k in range(2, n_most + 1):
        cost, choice = _one_more(sizes, calls, cost, k)
        chosen.append(choice)
        yield _walk_back(sizes, chosen)


def _one_more(sizes: list[int], calls: list[int], before: list[float], k: int) -> tuple[list[float], list[int]]:
    """Costs with exactly ``k`` buckets from those with ``k - 1``, and where each last bucket begins."""
    m = len(sizes)
    cost = [float("inf")] * (m + 1)
    choice = [0] * (m + 1)
    lines: list[tuple[int, float, int]] = []  # slope, intercept, i; from steepest last
    first = 0
    for j in range(k, m + 1):
        i = j - 1
        slope, intercept = -calls[i], before[i]
        while len(lines) - first >= 2 and _is_hidden(lines[-2], lines[-1], slope, intercept):
            lines.pop()
        lines.append((slope, intercept, i))
        first = min(first, len(lines) - 1)
        x = sizes[j - 1]
        while len(lines) - first >= 2 and lines[first + 1][0] * x + lines[first + 1][1] <= (
            lines[first][0] * x + lines[first][1]
        ):
            first += 1
        best = lines[first]
        cost[j] = best[0] * x + best[1] + x * calls[j]
        choice[j] = best[2]
    return cost, choice


def _is_hidden(a: tuple[int, float, int], b: tuple[int, float, int], slope: int, intercept: float) -> bool:
    """True if line b is nowhere the lowest between a and the new line (slopes fall)."""
    return (intercept - a[1]) * (a[0] - b[0]) <= (b[1] - a[1]) * (a[0] - slope)


def _walk_back(sizes: list[int], chosen: list[list[int]]) -> tuple[int, ...]:
    found = []
    at = len(sizes)
    for choice in reversed(chosen):
        found.append(sizes[at - 1])
        at = choice[at]
    return tuple(reversed(found))
