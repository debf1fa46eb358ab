"""A share may be written as a number or in per cent, wherever a document has one."""

import typing

import pytest
from pydantic import BaseModel

from partywall.consolidate.document import Cluster
from partywall.guard.document import Policy
from partywall.load.document import LoadPlan
from partywall.migrate.document import MigrationPlan
from partywall.run.check import loads
from partywall.run.document.scenario import Scenario
from partywall.units import parse_share

TEXT = """
partywall: 1
name: shares
budget: 10min
victims:
  mine: {probe: integer, sandbox: {backend: container}}
aggressors:
  hog: {stressor: integer, intensity: [25%, 0.5]}
factors:
  victims.mine.sandbox.cpu_limit: [50%, 100%]
goals:
  - {victim: mine, latency_impact_p99: 50%}
  - {victim: mine, latency_impact_p99: 1.5}
  - {victim: mine, isolation_factor: 95%}
  - {victim: mine, efficiency: [95%, 1.05]}
"""


def test_per_cent_and_numbers_are_the_same():
    scenario = loads(TEXT)
    assert scenario.aggressors["hog"].intensity == (0.25, 0.5)
    assert [goal.latency_impact_p99 for goal in scenario.goals] == [0.5, 1.5, None, None]
    assert scenario.goals[3].efficiency == (0.95, 1.05)


def floats(annotation, seen, found=()):
    """The metadata of every number with a fraction in a type, models inside included."""
    own = getattr(annotation, "__metadata__", ())
    metadata = [*found, *own, *(each for field in own for each in getattr(field, "metadata", ()))]
    if annotation is float:
        yield metadata
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        for name, field in annotation.model_fields.items():
            for inner in floats(field.annotation, seen, field.metadata):
                yield [*inner, name]
    else:
        arguments = typing.get_args(annotation)
        for part in arguments[:1] if own else arguments:
            yield from floats(part, seen, metadata)


@pytest.mark.parametrize("model", [Scenario, Cluster, LoadPlan, MigrationPlan, Policy])
def test_every_number_that_is_at_most_one_is_a_share(model):
    plain = [
        metadata[-1]
        for metadata in floats(model, set())
        if any(getattr(each, "le", getattr(each, "lt", None)) in (0.5, 1, 1.5) for each in metadata)
        and not any(getattr(each, "func", None) is parse_share for each in metadata)
    ]
    assert plain == []
