"""Metrics as Prometheus text, for node_exporter's textfile collector. Partywall opens no port. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def family(name: str, about: str, kind: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> list[str]:
    """The lines of one metric with its help; none without samples. samples: labels and a value."""
    if not samples:
        return []
    return [
        f"# HELP {name} {about}",
        f"# TYPE {name} {kind}",
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
