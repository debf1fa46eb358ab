//! The capabilities that an agent was started with. If its controller needs only some, the agent can refuse the others.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use partywall_wire::{Capability, Fault, Method, Pace, Start, Work, CODE_DENIED, LONG_LINE, MAX_LINE};

/// Parses the name of a capability. The help lists all names.
pub(crate) fn parser() -> impl TypedValueParser<Value = Capability> {
    let values = Capability::ALL.iter().map(|(_, name, about)| PossibleValue::new(*name).help(*about));
    PossibleValuesParser::new(values).try_map(|name| {
        let entry = Capability::ALL.iter().find(|(_, known, _)| *known == name);
        entry.map(|(capability, ..)| *capability).ok_or("unknown capability")
    })
}

/// The permitted capabilities: all unless some were named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Only(pub Option<Vec<Capability>>);

impl Only {
    fn has(&self, capability: Capability) -> bool {
        self.0.as_ref().is_none_or(|only| only.contains(&capability))
    }

    /// Refuses a method of a capability that is not permitted. Methods about the agent itself and its clock are always permitted.
    pub(crate) fn check(&self, method: &str) -> Result<(), Fault> {
        match Method::find(method) {
            Some(Method { capabilities: any @ [_, ..], .. }) => self.check_any(any, method),
            _ => Ok(()),
        }
    }

    /// Refuses a workload of a kind that is not permitted.
    pub(crate) fn check_start(&self, start: &Start) -> Result<(), Fault> {
        let (capability, what) = match (&start.work, start.pace) {
            (Work::Kernel(_), Pace::FlatOut) => (Capability::Probe, "a probe"),
            (Work::Kernel(_), Pace::Scheduled) => (Capability::Stressor, "a stressor"),
            (Work::Command(_), _) => (Capability::Command, "a command"),
            (Work::Load(_), _) => (Capability::Load, "virtual users"),
        };
        self.check_any(&[capability], what)
    }

    fn check_any(&self, any: &[Capability], what: &str) -> Result<(), Fault> {
        if any.iter().any(|&capability| self.has(capability)) {
            return Ok(());
        }
        let list = |all: &[Capability], by: &str| all.iter().map(|each| each.name()).collect::<Vec<_>>().join(by);
        let only = list(self.0.as_deref().unwrap_or_default(), ",");
        let why = format!("this agent was started with --only {only}, which leaves out {what}; add {} to it", list(any, " or "));
        Err(Fault::new(CODE_DENIED, why))
    }

    /// The longest line that it must read. Only files of a load are long.
    pub(crate) fn line_max(&self) -> usize {
        if self.has(Capability::Load) {
            MAX_LINE
        } else {
            LONG_LINE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn start(work: &serde_json::Value, pace: &str) -> Start {
        serde_json::from_value(json!({ "id": "w", "work": work, "pace": pace, "work_dir": "/" })).unwrap()
    }

    #[test]
    fn what_was_not_named_is_refused_by_name() {
        let only = Only(Some(vec![Capability::Probe, Capability::Monitor]));
        for method in ["hello", "facts", "clock", "clock.adjust", "workload.start", "workload.stop", "monitor.start", "no.such"] {
            assert_eq!(only.check(method), Ok(()), "{method}");
        }
        for method in ["workload.calibrate", "workload.schedule", "guard.start", "guard.remove", "trace.feed", "memory.check"] {
            let fault = only.check(method).unwrap_err();
            assert_eq!(fault.code, CODE_DENIED);
            assert!(fault.message.contains("--only probe,monitor") && fault.message.contains(method), "{}", fault.message);
        }
        assert_eq!(only.line_max(), LONG_LINE);
    }

    #[test]
    fn a_workload_is_of_one_sort() {
        let only = Only(Some(vec![Capability::Probe]));
        let kernel = json!({ "kernel": { "name": "integer" } });
        let command = json!({ "command": { "argv": ["true"] } });
        assert_eq!(only.check_start(&start(&kernel, "flat_out")), Ok(()));
        for (work, pace, what) in [(&kernel, "scheduled", "a stressor; add stressor"), (&command, "flat_out", "a command; add command")] {
            let said = only.check_start(&start(work, pace)).unwrap_err().message;
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn all_is_there_unless_something_is_named() {
        let all = Only::default();
        assert!(["guard.start", "trace.start", "memory.check"].iter().all(|method| all.check(method).is_ok()));
        assert_eq!(all.line_max(), MAX_LINE);
    }
}
