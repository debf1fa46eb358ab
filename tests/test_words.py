"""The checker of the documents' words, on small texts: what it must find, and what it must leave alone."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benches"))

import words
from words import BANNED, ROOT, Fault

LISTED = ["tally", "of what", "go round"]


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("the", 1),
        ("bytes", 1),
        ("measured", 2),
        ("table", 2),
        ("process", 2),
        ("changes", 2),
        ("limited", 3),
        ("guarantee", 3),
        ("isolation", 4),
        ("work-conserving", 4),
        ("don't", 1),
    ],
)
def test_syllables_of_common_words_are_right(word: str, count: int):
    assert words.syllables(word) == count


def test_the_grade_is_that_of_the_formula():
    # Six words, six syllables, one sentence.
    assert words.grade("The cat sat on the mat.") == pytest.approx(0.39 * 6 + 11.8 - 15.59)


def test_long_words_in_long_sentences_get_a_higher_grade():
    plain = "The guard sets a rate. It reads a queue. It sends a list."
    hard = "Notwithstanding considerable organisational heterogeneity, administrators predominantly " * 4
    assert words.grade(plain) < 3 < words.GRADE_MAX < words.grade(hard)


def test_a_page_without_prose_has_no_grade():
    assert words.grade("# Title\n\n```\na b c d e.\n```\n\n| a | b |\n|---|---|\n| c | d |\n") == 0


def test_sentences_end_at_stops_paragraphs_and_items_but_not_in_numbers_or_abbreviations():
    text = (
        "One is 1.5 s, e.g. here. Two?\n\nThree\n\n- four\n  goes on\n- five (see VITS, Yuan et al., 2010).\n1. six\n"
    )
    assert [" ".join(part.split()) for part in words.sentences(text)] == [
        "One is 1.5 s, eg here.",
        "Two?",
        "Three",
        "four goes on",
        "five (see VITS, Yuan et al, 2010).",
        "six",
    ]


def test_code_counts_as_one_short_word_and_a_link_as_its_text():
    assert words.sentences("Run `partywall guard run` ([the page](docs/guard.md#x)).") == ["Run it (the page)."]


def test_a_line_above_120_characters_is_named_by_its_number():
    assert words.long_lines("x" * 120 + "\n" + "y" * 121 + "\n") == [Fault(2, "121 characters")]


def test_generated_parts_may_have_long_lines_and_any_words_and_lines_behind_them_keep_their_numbers():
    text = f"<!-- counters: written by the tests -->\n| tally {'x' * 130} |\n<!-- end of counters -->\nA tally.\n"
    assert words.long_lines(text) == []
    assert words.banned(text, LISTED) == [Fault(4, "tally")]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("A tally\nand a Tally.", [Fault(1, "tally"), Fault(2, "Tally")]),
        ("sums of\nwhat is sent", [Fault(1, "of what")]),
        ("| a cell | a tally |", [Fault(1, "tally")]),
        ("## Tally", [Fault(1, "Tally")]),
        ("- packets that go   round it", [Fault(1, "go round")]),
        ("tallying, sub-tally, cargo rounds", []),
        ("the file `tally.rs`, ``a tally``", []),
        ("```sh\ntally\n```\n", []),
        ("  ~~~\n  tally\n  ~~~\n", []),
        ("Text:\n\n    a tally in a block\n\nText.", []),
        ("<!-- a tally -->", []),
        ("[text](docs/tally.md)", []),
        ("[a tally](docs/x.md)", [Fault(1, "tally")]),
    ],
)
def test_banned_words_are_found_in_wording_and_not_in_code(text: str, faults: list[Fault]):
    result = words.banned(text, LISTED)
    assert [(fault.line, fault.text.lower()) for fault in result] == [(f.line, f.text.lower()) for f in faults]


def test_nothing_is_banned_by_an_empty_list():
    assert words.banned("A tally of what is sent.", []) == []


def test_the_list_has_one_phrase_a_line_and_comments():
    assert words.phrases("# a comment\n\ntally   # progress\nof what\n") == ["tally", "of what"]


def test_identifiers_comments_and_messages_of_source_are_checked_and_plain_code_is_not():
    source = (
        'tally_max = 1  # of what is sent\nraise Error("a tally")\nround_go = f"{x[\'tally\']}"\nfound = 2\n'
        'raise Error(f"{x[\'tally\']} is a tally")\nlast = "{tally}"\n'
    )
    assert [fault.line for fault in words.in_source(source, LISTED)] == [1, 1, 2, 4, 5]


def test_names_that_files_contain_may_be_attributes_and_keys_and_nothing_else():
    source = "class Row:\n    tally: int\nrow.tally = f(tally=row['tally'])\ntally = 1\ndef tally(): ...\n"
    assert [fault.line for fault in words.in_source(source, LISTED, ["tally"])] == [4, 5]
    assert {fault.line for fault in words.in_source(source, LISTED)} == {2, 3, 4, 5}


def test_a_planted_word_in_the_source_is_counted(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("# a tally\nheir = 1\n")
    assert len(words.check_source(tmp_path, LISTED, [])) == 1
    # Installed by `make bench-setup`.
    (tmp_path / "src" / ".peers").mkdir()
    (tmp_path / "src" / ".peers" / "b.py").write_text("heir = 1\n")
    assert len(words.check_source(tmp_path, LISTED, [])) == 1


def test_the_list_that_ships_holds_the_words_of_the_style_and_none_twice():
    listed = words.phrases(BANNED.read_text("utf-8"))
    assert {"heir", "witness", "tally", "visit", "exhibits", "doubts", "aside", "told", "asked", "of what"} <= set(
        listed
    )
    assert len(listed) == len(set(listed))


def test_a_planted_fault_in_a_page_is_found(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "ARCHITECTURE.md", "docs/page.md"):
        (tmp_path / name).write_text("The guard sets a rate.\n")
    assert words.check(tmp_path, LISTED) == []
    long = "a cat " * 21 + "sat."
    hard = "Notwithstanding considerable organisational heterogeneity.\n" * 3
    for fault in ("A tally.", "x" * 121, long, hard):
        (tmp_path / "docs" / "page.md").write_text(fault + "\n")
        assert words.check(tmp_path, LISTED)


def test_every_page_is_checked():
    names = {str(page.relative_to(ROOT)) for page in words.pages(ROOT)}
    assert {"README.md", "ARCHITECTURE.md", "docs/guard.md", "docs/kernels/cpu.md", "docs/internals/guard.md"} <= names


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ('Problem(f"must be positive, not {n}", "give for example 3", key="--n")', None),
        ('UsageError(f"{path} is empty; give another file")', None),
        ('CapabilityError(f"sandbox {name}: {error}")', None),
        ('TrialError(f"the agent of {name} ended")', None),
        ("UsageError(text)", None),
        ('Problem(f"{path} is empty")', "no remedy"),
        ('Problem("cannot be read", "", str(path))', "no remedy"),
        ('UsageError("the file is empty")', "no remedy"),
        ('Problem("nothing is given", "give more")', "neither the thing nor the value"),
        ('TrialError("it ended")', "neither the thing nor the value"),
        ('Problem(f"{path} is empty.", "Give another file.")', "full stop"),
        ('Problem(f"{path} is empty", "is it there?")', "question mark"),
        ('Problem(f"{text!r} is no number", "give 1")', "plainly"),
        (f'Problem("{"very " * 40}long", "give 1")', "more than 40 words"),
    ],
)
def test_every_message_names_its_thing_and_a_remedy(call: str, fault: str | None):
    faults = [each.text for each in words.messages(f"raise {call}\n")]
    assert len(faults) <= 1 if fault is None else faults
    assert all(fault and fault in text for text in faults[:1])


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ('return Err(Fault::usage("threads: 0 is too small; give 1"));', None),
        ('let why = format!("file {}: {error}", path.display());', None),
        ('#[error("the command ended: {0}")]', None),
        ('info("nothing is wrong.");', None),
        ('#[cfg(test)]\nmod tests { fn f() { Err("is no number.") } }', None),
        ('return Err(Fault::usage("threads: 0 is too small"));', "no remedy"),
        ('self.problem(&format!("{key}.to"), format!("{to} is too large"));', "no remedy"),
        ('return Err(format!("{part:?} is no CPU"));', "plainly"),
        ('#[error("it failed: {0}; is it running?")]', "question mark"),
        (f'Err("{"very " * 41}long")', "more than 40 words"),
    ],
)
def test_messages_of_the_agent_have_a_form_too(code: str, fault: str | None):
    faults = [each.text for each in words.messages_in_rust(code)]
    assert len(faults) == (fault is not None)
    assert all(fault and fault in text for text in faults)


def test_names_comments_and_texts_of_rust_are_checked():
    source = (
        "/// A tally.\nlet found = HopTally { told_ns };\n"
        "Err(format!(\"{tally} of what is\\\n    sent\"));\nlet c = '\"'; // found, fine here\nfn tally<'tally>() {}\n"
    )
    assert [(fault.line, fault.text) for fault in words.in_rust(source, LISTED, ["told_ns"])] == [
        (1, "tally"),
        (2, "found"),
        (2, "HopTally"),
        (3, "of what"),
        (6, "tally"),
    ]


def test_keys_that_others_read_may_stand_in_texts_of_rust():
    assert words.in_rust('json!({ "tally": 1 })', LISTED, (), ["tally"]) == []
    assert len(words.in_rust('json!({ "tally": 1 })', LISTED)) == 1
