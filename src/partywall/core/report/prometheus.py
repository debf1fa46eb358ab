"""Metrics as Prometheus text, for node_exporter's textfile collector, and as OpenMetrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def family(
    name: str, about: str, kind: str, samples: Sequence[tuple[Mapping[str, str], float]], *, is_open: bool = False
) -> list[str]:
    """The lines of one metric with its help; none without samples. samples: labels and a value.

    is_open: as OpenMetrics, where the name of a counter's family has no `_total`.
    """
    if not samples:
        return []
    of_family = name.removesuffix("_total") if is_open and kind == "counter" else name
    return [
        f"# HELP {of_family} {about}",
        f"# TYPE {of_family} {kind}",
        *(
            f"{name}{{{_labels(at)}}} {value:.12g}" if isinstance(value, float) else f"{name}{{{_labels(at)}}} {value}"
            for at, value in samples
        ),
    ]


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {
        key: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, value in labels.items()
    }
    return ",".join(f'{key}="{value}"' for key, value in escaped.items())
