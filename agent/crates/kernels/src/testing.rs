//! Shared by the tests of several kernels.

use std::path::PathBuf;

use partywall_clock::Nanos;
use serde_json::Value;

use crate::{find, Environment, Kernel, KernelError, Params, Sink};

/// Keeps every latency.
#[derive(Default)]
pub(crate) struct Latencies(pub Vec<Nanos>);

impl Latencies {
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Sink for Latencies {
    fn latency(&mut self, value_ns: Nanos) {
        self.0.push(value_ns);
    }
}

/// A folder on the disk of the build directory, which is a real disk even if `/tmp` is not.
pub(crate) fn disk_folder() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

pub(crate) fn environment() -> Environment {
    Environment { root: "/".into(), work_dir: disk_folder(), seed: 1, thread: 0, threads: 1 }
}

fn params(value: Value) -> Params {
    match value {
        Value::Object(params) => params,
        other => panic!("parameters are an object, not {other}"),
    }
}

/// Parses parameters from text, as they arrive over the wire.
pub(crate) fn parsed(json: &str) -> Params {
    params(serde_json::from_str(json).unwrap())
}

pub(crate) fn try_build(name: &str, value: Value) -> Result<Box<dyn Kernel>, KernelError> {
    (find(name).unwrap().build)(&params(value), &environment())
}

pub(crate) fn build(name: &str, value: Value) -> Box<dyn Kernel> {
    try_build(name, value).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The error when the kernel is built.
pub(crate) fn error(name: &str, value: Value) -> String {
    match try_build(name, value) {
        Ok(_) => panic!("{name} was built"),
        Err(error) => error.to_string(),
    }
}

/// The sum of the work of `count` steps.
pub(crate) fn steps(kernel: &mut dyn Kernel, count: usize, sink: &mut dyn Sink) -> f64 {
    (0..count).map(|_| kernel.step(sink).unwrap()).sum()
}

/// The numeric fact `key`.
pub(crate) fn fact(kernel: &dyn Kernel, key: &str) -> f64 {
    kernel.facts().get(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {key} in {:?}", kernel.facts()))
}
