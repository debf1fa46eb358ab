"""Metrics as Prometheus text, for node_exporter's textfile collector, and as OpenMetrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def family(
    name: str,
    about: str,
    kind: str,
    samples: Sequence[tuple[Mapping[str, str], float]] | Sequence[str],
    *,
    is_open: bool = False,
) -> list[str]:
    """The lines of one metric with its help; none without samples. samples: labels and a value, or finished lines.

    is_open: as OpenMetrics, where the name of a counter's family has no `_total`.
    """
    if not samples:
        return []
    of_family = name.removesuffix("_total") if is_open and kind == "counter" else name
    lines = (each if isinstance(each, str) else f"{sample(name, each[0])} {_value(each[1])}" for each in samples)
    return [f"# HELP {of_family} {about}", f"# TYPE {of_family} {kind}", *lines]


def sample(name: str, labels: Mapping[str, str]) -> str:
    """A metric's name with its labels, as it stands before a value."""
    return f"{name}{{{_labels(labels)}}}"


def _value(value: float) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {
        key: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, value in labels.items()
    }
    return ",".join(f'{key}="{value}"' for key, value in escaped.items())
