//! Reads facts from a host. Each question is one file, and each missing answer leaves a reason.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that the host lacks or does not report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// The fact or the counters.
    pub what: String,
    /// The file and its problem.
    pub why: String,
    /// What is impossible or unknown without it.
    pub cost: String,
    /// How to get it.
    pub remedy: String,
}

/// A question to the host. Only its file depends on the host.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub what: &'static str,
    pub cost: &'static str,
    pub remedy: &'static str,
}

/// Location below `root` of an absolute path on the host.
#[must_use]
pub fn under(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

pub(crate) struct Survey<'a> {
    root: &'a Path,
    missing: Vec<Missing>,
}

impl<'a> Survey<'a> {
    pub fn new(root: &'a Path) -> Self {
        Self { root, missing: Vec::new() }
    }

    pub fn root(&self) -> &'a Path {
        self.root
    }

    pub fn into_missing(self) -> Vec<Missing> {
        self.missing
    }

    pub fn exists(&self, path: &str) -> bool {
        under(self.root, path).exists()
    }

    /// The trimmed text of a file that many hosts lack. A missing file leaves no reason.
    pub fn optional(&self, path: &str) -> Option<String> {
        text(&under(self.root, path)).ok()
    }

    /// The names in a folder, sorted. Empty if it cannot be read.
    pub fn names(&self, path: &str) -> Vec<String> {
        names(&under(self.root, path))
    }

    /// Reads `path` and parses it. If either fails, the reason is stored.
    pub fn ask<T>(&mut self, question: Question, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let answer = text(&under(self.root, path))
            .map_err(|error| format!("{path}: {error}"))
            .and_then(|text| parse(&text).ok_or_else(|| format!("{path} has unexpected content ({:?})", shortened(&text))));
        answer.map_err(|why| self.lack(question, why)).ok()
    }

    pub fn lack(&mut self, Question { what, cost, remedy }: Question, why: String) {
        self.missing.push(Missing { what: what.into(), why, cost: cost.into(), remedy: remedy.into() });
    }
}

pub(crate) fn text(path: &Path) -> std::io::Result<String> {
    // Firmware strings need not be UTF-8.
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Like [`text`], with an error that names the file.
pub(crate) fn named_text(path: &Path) -> std::io::Result<String> {
    text(path).map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by(|a, b| natural(a).cmp(&natural(b)));
    names
}

/// Sort key that puts `cpu2` before `cpu10`.
fn natural(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0), name)
}

fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(60).collect()
}

/// The value of a `key: value` or `key value` line.
pub(crate) fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        let value = rest.trim_start().strip_prefix(':').or_else(|| rest.starts_with(char::is_whitespace).then_some(rest))?;
        Some(value.trim())
    })
}
