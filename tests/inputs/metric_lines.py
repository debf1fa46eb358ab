"""Gives the lines of a file to the reader of a command's output, a second apart, and prints the counts.

metric_lines.py FILE JSONPATH. The counts are those that a run reports.
"""

import sys
from pathlib import Path

from partywall.agent.metric import Extractor, Metric

extractor = Extractor(Metric.model_validate({"json": sys.argv[2]}))
for second, line in enumerate(Path(sys.argv[1]).read_text("utf-8").splitlines(), start=1):
    for start_ns, end_ns, work in extractor.feed(second * 10**9, line):
        print(f"from {start_ns // 10**9} s to {end_ns // 10**9} s: {work:g}")
print(f"{extractor.counts.readings} readings, {extractor.counts.bad} bad, {extractor.counts.malformed} malformed")
