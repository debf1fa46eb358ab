//! The table of methods ([`crate::methods`]) without types. `serve --only` checks it, tests and fuzzing decode by it, and the schema
//! lists it.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;

use crate as wire;

/// A capability of an agent: a group of methods, or a kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Measured kernels.
    Probe,
    /// Paced kernels.
    Stressor,
    /// Commands of the user.
    Command,
    /// Virtual users.
    Load,
    /// Counters of the host.
    Monitor,
    /// Bandwidth of interfaces.
    Guard,
    /// Packets that are in transit.
    Trace,
    /// Checks of free memory, and of memory that changes.
    Memory,
}

impl Capability {
    /// All capabilities, with name and description for the help.
    pub const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Probe, "probe", "Kernels measured"),
        (Self::Stressor, "stressor", "Kernels paced"),
        (Self::Command, "command", "Commands of the user"),
        (Self::Load, "load", "Virtual users"),
        (Self::Monitor, "monitor", "Counters of the host"),
        (Self::Guard, "guard", "Bandwidth of interfaces"),
        (Self::Trace, "trace", "Packets along their path"),
        (Self::Memory, "memory", "Whether memory is free, and which pages change"),
    ];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(each, ..)| *each == self).map_or("", |(_, name, _)| name)
    }
}

/// A Linux capability (capabilities(7)) that the agent must have on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Privilege {
    /// Hooks and queues of interfaces.
    #[serde(rename = "CAP_NET_ADMIN")]
    NetAdmin,
    /// Other network namespaces.
    #[serde(rename = "CAP_SYS_ADMIN")]
    SysAdmin,
    /// Memory that eBPF programs read.
    #[serde(rename = "CAP_PERFMON")]
    Perfmon,
    /// eBPF programs and maps.
    #[serde(rename = "CAP_BPF")]
    Bpf,
}

/// A row of the table, without its types.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Name in requests.
    pub name: &'static str,
    /// The agent needs one of these; see `serve --only`. Empty for methods that are always available.
    pub capabilities: &'static [Capability],
    /// Linux capabilities that the method needs.
    pub needs: &'static [Privilege],
    read: fn(Value) -> Result<Value, serde_json::Error>,
}

impl Method {
    /// The method named `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.name == name)
    }

    /// Parses parameters and serialises them again. Null for a method without parameters.
    ///
    /// # Errors
    /// They are not valid for this method.
    pub fn read(&self, params: Value) -> Result<Value, serde_json::Error> {
        (self.read)(params)
    }
}

fn written_again<P: DeserializeOwned + Serialize>(params: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<P>(params)?)
}

macro_rules! reader {
    () => {
        |_| Ok(Value::Null)
    };
    ($params:ty) => {
        written_again::<$params>
    };
}

macro_rules! rows {
    ($($name:literal $answer:ident($($params:ty)?) -> $result:ty, only [$($capability:ident),*], needs [$($need:ident),*];)*) => {
        /// All methods, in the order of the table.
        pub const METHODS: &[Method] = &[$(Method {
            name: $name,
            capabilities: &[$(Capability::$capability),*],
            needs: &[$(Privilege::$need),*],
            read: reader!($($params)?),
        }),*];
    };
}

crate::methods!(rows);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_method_is_declared_once() {
        let names: HashSet<_> = METHODS.iter().map(|method| method.name).collect();
        assert_eq!(names.len(), METHODS.len());
        assert!(names.iter().all(|name| Method::find(name).is_some_and(|method| method.name == *name)));
        assert!(Method::find("no.such").is_none());
    }

    #[test]
    fn every_capability_has_the_name_that_is_written() {
        for (capability, name, _) in Capability::ALL {
            assert_eq!((serde_json::json!(capability), capability.name()), (serde_json::json!(name), *name));
        }
    }

    #[test]
    fn parameters_are_read_by_their_own_method_only() {
        let stop = serde_json::json!({ "id": "w" });
        let read = |name: &str| Method::find(name).unwrap().read(stop.clone());
        assert_eq!(read("guard.stop").unwrap(), stop);
        assert!(read("guard.start").is_err());
        assert_eq!(read("clock").unwrap(), Value::Null);
    }
}
