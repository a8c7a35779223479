"""Rows of a table in which every two values of two columns stand together at least once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any


def pairwise(**columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Greedy: each row begins with a pair that is missing and adds what brings the most others,
    among equals what was used least.

    The result is the same on every run: rows are named in test reports.
    """
    names = list(columns)
    missing = {
        ((a, x), (b, y)): None
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(columns[a], columns[b])
    }

    def gain(row: dict[str, Any], name: str, value: Any) -> int:
        cells = ([(other, row[other]), (name, value)] for other in row)
        return sum(
            tuple(sorted(pair, key=lambda c: names.index(c[0]))) in missing for pair in cells
        )

    used: Counter[tuple[str, Any]] = Counter()
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in names:
            if name not in row:
                best = [(gain(row, name, v), -used[name, v], v) for v in columns[name]]
                row[name] = max(best, key=lambda choice: choice[:2])[2]
        cells = [(name, row[name]) for name in names]
        used.update(cells)
        for pair in itertools.combinations(cells, 2):
            missing.pop(pair, None)
        rows.append(tuple(row[name] for name in names))
    return rows
