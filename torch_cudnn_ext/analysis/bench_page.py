"""The page of a bench: how our times compare with PyTorch's, one bar for each comparison."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch_cudnn_ext.analysis.page import (
    Page,
    Section,
    environment,
    sorted_table,
)
from torch_cudnn_ext.analysis.pictures import Bar, backend_legend, bars
from torch_cudnn_ext.analysis.result_files import Item
from torch_cudnn_ext.analysis.tables import Table, plural

_MOST_BARS = 60
_EQUAL = 1.005  # a smaller factor would be told as 1.00


def bench_sentence(items: Iterable[Item]) -> str:
    """The geometric mean of the ratios, and how many are clearly above or below 1."""
    ratios = [_ratio(item) for item in items]
    if not ratios:
        return "Nothing was compared."
    count = Counter(
        "faster" if low > 1 else "slower" if high < 1 else "neither" for _, low, high in ratios
    )
    mean = statistics.geometric_mean(ratio for ratio, _, _ in ratios)
    word, factor = ("faster than", mean) if mean >= 1 else ("slower than", 1 / mean)
    compared = "as fast as" if factor < _EQUAL else f"{factor:.2f}x {word}"
    told = ", ".join(f"{count[name]} {name}" for name in ("faster", "slower", "neither"))
    return (
        f"Ours is {compared} PyTorch, by the geometric mean of "
        f"{plural(len(ratios), 'comparison')}: {told}."
    )


def bench_page(
    items: Sequence[Item], tables: Sequence[Table], facts: Mapping[str, str], replay: str
) -> Page:
    """A bench as a page.

    Args:
        items: The comparisons.
        tables: The same as they are printed.
        facts: The environment, by name.
        replay: The command that measures again; empty if it is not known.
    """
    by_ratio = sorted(items, key=lambda item: -_ratio(item)[0])
    lines = []
    for item in by_ratio[:_MOST_BARS]:
        ratio, low, high = _ratio(item)
        label = " ".join(filter(None, (item.part, ", ".join(item.names) or item.subject)))
        backend = item.algorithm.partition(":")[0] or "best"
        lines.append(Bar(label, 1.0, ratio, backend, f"{ratio:.2f} ({low:.2f} to {high:.2f})"))
    more = len(by_ratio) - len(lines)
    shown = f" ({more} more in the table)" if more else ""
    used = {line.kind for line in lines}
    keys = backend_legend(used, "PyTorch; ours in colour:")
    sections = [
        Section("Speed-up", keys * bool(lines) + bars(lines, f"PyTorch's time by ours{shown}")),
        Section("Comparisons", "".join(map(sorted_table, tables))),
        environment(facts, "To measure again:", replay),
    ]
    title = tables[0].title if tables else "Comparison with PyTorch"
    return Page(title[:1].upper() + title[1:], bench_sentence(items), sections)


def _ratio(item: Item) -> tuple[float, float, float]:
    """PyTorch's time by ours, and the ends of its interval."""
    assert item.cost is not None
    return 1 / item.cost, 1 / item.high, 1 / item.low
