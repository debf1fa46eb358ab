"""The list of backends agrees with what else names them."""

import importlib
from typing import get_args

from partywall.host.block import Throttle
from partywall.sandbox import Sandbox, backends
from partywall.sandbox.document import Sandbox as Box


def test_the_names_of_the_format_are_those_of_the_list():
    assert get_args(backends.Name) == tuple(backends.BACKENDS)


def test_every_setting_is_a_key_of_a_sandbox():
    assert set(backends.SETTINGS) < set(Box.model_fields)
    assert {f"disk.{key}" for key in Throttle.model_fields} == set(backends.LIVE_DISK)
    for each in backends.BACKENDS.values():
        assert each.settings <= set(backends.SETTINGS)
        assert {key.partition(".")[0] for key in each.live} <= each.settings
        assert set(each.controllers) <= each.settings


def test_every_backend_is_made_by_a_class_of_its_own():
    places = [each.made_by.split(":") for each in backends.BACKENDS.values()]
    made = [getattr(importlib.import_module(f"partywall.sandbox.{module}"), name) for module, name in places]
    assert all(issubclass(each, Sandbox) for each in made)
    assert len(set(made)) == len(made)
