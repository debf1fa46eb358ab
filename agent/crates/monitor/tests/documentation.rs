//! `docs/monitors.md` lists exactly the existing counters. `UPDATE_DOCS=1 cargo test -p partywall-monitor` rewrites the list.

use std::fmt::Write;
use std::fs;

use partywall_monitor::{catalogue, CatalogueEntry};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/monitors.md");
const START: &str = "<!-- counters: written by the tests of partywall-monitor -->\n";
const END: &str = "<!-- end of counters -->\n";

/// A unit-only or word-only enum as the wire writes it.
fn word(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().unwrap().to_owned()
}

fn step(entry: &CatalogueEntry) -> String {
    if entry.step.to_bits() == 1f64.to_bits() {
        word(entry.unit)
    } else {
        format!("{} (steps of {})", word(entry.unit), entry.step)
    }
}

fn table() -> String {
    let mut table = String::new();
    let mut section = ("", "");
    for entry in catalogue() {
        if section != (entry.file, entry.subject) {
            section = (entry.file, entry.subject);
            write!(table, "\n### `{}`: {}\n\n", entry.file, entry.subject).unwrap();
            table.push_str(
                "| counter | key in the file | unit | kind | resource | what it means when it moves |\n|---|---|---|---|---|---|\n",
            );
        }
        let CatalogueEntry { name, key, kind, resource, meaning, .. } = entry;
        let key = if key.is_empty() { "the whole file" } else { key };
        writeln!(table, "| `{name}` | {key} | {} | {} | {} | {meaning} |", step(&entry), word(kind), word(resource)).unwrap();
    }
    table.push('\n');
    table
}

#[test]
fn the_page_lists_exactly_the_counters_there_are() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(START).expect("the page has a mark where the counters start");
    let (listed, after) = rest.split_once(END).expect("the page has a mark where the counters end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PAGE, [before, START, &table(), END, after].concat()).unwrap();
    } else {
        assert!(listed == table(), "docs/monitors.md is not up to date; run UPDATE_DOCS=1 cargo test -p partywall-monitor");
    }
}

#[test]
fn every_counter_has_a_phrase_of_its_own_that_is_the_same_wherever_it_is_read() {
    let mut phrases: Vec<_> = catalogue().into_iter().map(|entry| (entry.name, entry.phrase)).collect();
    phrases.sort_unstable();
    phrases.dedup();
    assert!(phrases.windows(2).all(|pair| pair[0].0 != pair[1].0), "{phrases:?}");
    for (name, phrase) in phrases {
        assert!(!phrase.is_empty() && !phrase.ends_with('.') && !phrase.contains('_'), "{name}: {phrase:?}");
    }
}
