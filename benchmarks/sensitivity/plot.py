"""Pictures of an evaluation: power curves, and false alarms against hits. Needs matplotlib, which nothing else does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sensitivity.judge import NVBENCH, Curve, Row, curves, evaluate, percent, pooled, stored_name
from benchmarks.sensitivity.recording import Recording

# Okabe and Ito's palette (jfly.uni-koeln.de/color), told apart by markers and dashes too.
STYLES = [
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
    ("#56B4E9", "v", "--"),
    ("#E69F00", "P", "-."),
    ("#000000", "X", ":"),
]

MARKED = 0.02
"""The threshold that is marked on the curves."""


def draw(recording: Recording, out: Path, runs: int) -> list[Path]:
    """Write `power` and `tradeoff` as PNG and SVG into `out`; returns the paths.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "0"})
    rows = evaluate(recording, runs)
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for name, figure in (
        ("power", power(pyplot, recording, rows)),
        ("tradeoff", tradeoff(pyplot, pooled(rows), curves(recording))),
    ):
        for kind in ("png", "svg"):
            path = out / f"{name}.{kind}"
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
            found.append(path)
        pyplot.close(figure)
    return found


def chosen(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Tool and timing mode of the curves that are drawn: one or two of each tool."""
    have = list(dict.fromkeys((row.tool, row.mode) for row in rows))

    def first(tool: str, *modes: str) -> list[tuple[str, str]]:
        own = [pair for pair in have if pair[0] == tool]
        return ([pair for wanted in modes for pair in own if pair[1] == wanted] or own)[:1]

    return [
        *first("perfci, r = 1 %", "rotating", "cold"),
        *first("perfci, r = 0.5 %", "rotating", "cold"),
        *first(stored_name(1, 0.02), "cold", "nvbench", "rotating"),
        *first(stored_name(16, 0.02), "rotating"),
        *first("asv's rule, factor 1.01", "cold", "nvbench", "rotating"),
        *first("asv's rule, factor 1.1", "cold", "nvbench", "rotating"),
        *first(NVBENCH, "cold"),
    ]


def power(pyplot: Any, recording: Recording, rows: Sequence[Row]) -> Any:
    """Share of alarms over the slow-down, a panel per kernel; at 0 they are false."""
    kernels = recording.kernels
    realised = recording.meta.get("realised", {})
    figure, panels = pyplot.subplots(2, -(-len(kernels) // 2), figsize=(11, 6), sharex=True, sharey=True, squeeze=False)
    for panel, kernel in zip(panels.flat, kernels, strict=False):
        for (tool, mode), (colour, marker, dash) in zip(chosen(rows), STYLES, strict=False):
            own = [r for r in rows if (r.tool, r.mode, r.kernel) == (tool, mode, kernel)]
            if own:
                # Realised where it was measured; all tools saw the same code.
                slow = realised.get(kernel, {}).get("slow", {})
                x = [100 * slow.get(f"{row.slow:g}", {}).get("slower", row.slow) for row in own]
                y = [100 * row.rate for row in own]
                label = f"{tool} ({mode})"
                panel.plot(x, y, color=colour, marker=marker, linestyle=dash, label=label, markersize=5)
        panel.set_title(kernel, loc="left")
        panel.grid(alpha=0.3)
        panel.set_ylim(-4, 104)
    for panel in panels[-1]:
        panel.set_xlabel("true slow-down, %")
    for panel in panels[:, 0]:
        panel.set_ylabel("alarms, % of decisions")
    handles = {
        label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    _legend(figure, list(handles.values()), list(handles))
    figure.suptitle("How often each tool sounds the alarm (at 0 % falsely)", x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    return figure


def _legend(figure: Any, handles: list[Any], labels: list[str]) -> None:
    figure.legend(handles, labels, loc="upper center", ncol=3, bbox_to_anchor=(0.5, 0.02), frameon=False)


def tradeoff(pyplot: Any, rows: Sequence[Row], lines: Sequence[Curve]) -> Any:
    """Hits against false alarms, kernels together: each other rule at every threshold, perfci as points."""
    slow = sorted(lines[0].hits) if lines else [0.01]
    figure, panels = pyplot.subplots(1, len(slow), figsize=(11, 4.6), sharey=True, squeeze=False)
    share = {(row.tool, row.mode, row.slow): row.rate for row in rows}
    for panel, by in zip(panels[0], slow, strict=True):
        for line, (colour, marker, dash) in zip(lines, [*STYLES[1:], STYLES[0]], strict=False):
            x, y = ([100 * value for value in values] for values in (line.false_alarms, line.hits[by]))
            label = f"{line.tool} ({line.mode})"
            panel.plot(x, y, color=colour, marker=marker, linestyle=dash, label=label, markersize=4)
            at = line.thresholds.index(MARKED)
            panel.annotate(percent(MARKED), (x[at], y[at]), textcoords="offset points", xytext=(5, 3), fontsize=7)
        for (tool, mode, at_slow), hits in share.items():
            if at_slow == by and tool.startswith("perfci") and mode == "rotating":
                x_own = 100 * share[tool, mode, 0.0]
                marker = "*" if "0.5" in tool else "o"
                panel.plot([x_own], [100 * hits], marker, color=STYLES[0][0], markersize=12, label=tool, clip_on=False)
        panel.set_title(f"true slow-down of {percent(by)}", loc="left")
        panel.set_xlabel("false alarms, % of decisions on the same code")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("found, % of decisions")
    handles, labels = panels[0][0].get_legend_handles_labels()
    _legend(figure, handles, labels)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    return figure
