//! Programs that run on the host all the time, by name: container engines, agents, databases, guests.

use std::collections::BTreeSet;

use crate::process::{fields, PARENT};
use crate::survey::Survey;

const INIT: u64 = 1;
/// A host with more kinds of programs than this is not described by them.
const MOST: usize = 64;

/// Names of the programs whose parent is init, each once, in order: services, and what outlived its parent. Kernel threads have
/// another parent.
pub(crate) fn read(survey: &Survey) -> Vec<String> {
    let names: BTreeSet<String> = survey.names("/proc").iter().filter_map(|process| daemon(survey, process)).collect();
    if names.len() > MOST {
        return Vec::new();
    }
    names.into_iter().collect()
}

fn daemon(survey: &Survey, process: &str) -> Option<String> {
    process.parse::<u32>().ok()?;
    let stat = survey.optional(&format!("/proc/{process}/stat"))?;
    let [parent] = fields(stat.as_bytes(), [PARENT]);
    let name = stat.get(stat.find('(')? + 1..stat.rfind(')')?)?;
    (parent == Some(INIT) && !name.is_empty()).then(|| name.to_owned())
}
