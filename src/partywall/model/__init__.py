"""The values that flow from stage to stage: Scenario → Plan → events and slices → Observation → Findings.

All of them are frozen, hold no behaviour beyond what their own fields determine, and know nothing of files or hosts.
"""
