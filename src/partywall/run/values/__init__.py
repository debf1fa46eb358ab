"""The values that flow between stages: Scenario → Plan → events and slices → Observation → Findings.

All are frozen. Their behaviour depends only on their own fields; they know nothing about files or hosts.
"""
