"""Schemas for editors, their catalogue, and what the site does with the pages of docs/."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from labs.release.target import CLONE
from labs.schemas import schemas

SITE = CLONE / "packaging/site"
SHIPPED = CLONE / "src/partywall/scenarios"
DOCUMENTS = [
    ("policy", CLONE / "docs/examples/edge.yaml"),
    ("policy", CLONE / "docs/examples/two-links.yaml"),
    *(("migration", SHIPPED / f"{name}.yaml") for name in ("migration", "comparisons")),
    *(("cluster", SHIPPED / f"{name}.yaml") for name in ("cluster", "data-centre")),
]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("pages", SITE / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "schema"), schemas().items())
def test_the_checked_in_schemas_are_up_to_date(name: str, schema: dict):
    Draft202012Validator.check_schema(schema)
    checked_in = json.loads((CLONE / f"schema/{name}.schema.json").read_text())
    assert checked_in == schema, "write it anew: make generate"


@pytest.mark.parametrize(("name", "file"), DOCUMENTS, ids=lambda each: getattr(each, "stem", each))
def test_documents_that_are_shipped_fit_their_schema_and_a_mistake_does_not(name: str, file: Path):
    validator = Draft202012Validator(schemas()[name])
    document = YAML(typ="safe", pure=True).load(file.read_text())
    assert [error.message for error in validator.iter_errors(document)] == []
    assert not validator.is_valid(document | {"nmae": "x"})


def test_the_catalogue_names_each_schema_and_its_files_once(pages):
    listed = pages.catalogue("https://example.org/docs/")["schemas"]
    assert {each["url"] for each in listed} >= {"https://example.org/docs/schema/policy.schema.json"}
    patterns = [pattern for each in listed for pattern in each["fileMatch"]]
    assert len(patterns) == len(set(patterns)) == len(listed) == 5
    said = (CLONE / "docs/ci.md").read_text()
    assert [pattern for pattern in patterns if pattern not in said] == []


@pytest.mark.parametrize(
    ("place", "written", "shown"),
    [
        ("index.md", "[a](docs/guard.md#x)", "[a](guard.md#x)"),
        ("index.md", "![a](docs/report.png)", "![a](report.png)"),
        ("papers/vits.md", "[a](../papers.md)", "[a](../papers.md)"),
        ("kernels/README.md", "[a](../../README.md#a-scenario)", "[a](../index.md#a-scenario)"),
        ("ARCHITECTURE.md", "[a](tests/hosts/README.md)", "a (`tests/hosts/README.md`)"),
        ("guard.md", "[a](nothing.md)", "[a](nothing.md)"),
        ("guard.md", "[a](https://example.org/b)", "[a](https://example.org/b)"),
        ("guard.md", "[a](#x)", "[a](#x)"),
    ],
)
def test_links_lead_to_the_page_in_the_site_or_name_the_file(pages, place: str, written: str, shown: str):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place), ancestors=[], title="", meta={})
    assert pages.on_page_markdown(written, page, None, None) == shown


def test_what_belongs_to_an_item_of_a_list_is_indented_as_the_site_needs_it(pages):
    text = "1. a\n   b\n\n   ```\n     c\n   ```\n- d\n  - e\n\nf\n  g"
    assert pages._indented(text.splitlines()) == [
        *("1. a", "    b", "", "    ```", "      c", "    ```"),
        *("- d", "    - e", "", "f", "  g"),
    ]


def test_every_page_of_docs_is_in_the_menu():
    listed = re.findall(r"^ +- (\S+\.md)$", (SITE / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {file.relative_to(CLONE / "docs").as_posix() for file in (CLONE / "docs").rglob("*.md")}
    assert set(listed) == there | {"index.md", "ARCHITECTURE.md", "CHANGELOG.md"}
    assert len(listed) == len(set(listed))
