//! `quantum`: repeats the same piece of work. The time of a quantum beyond the shortest one is time in which the thread did not run:
//! scheduling, interrupts, the hypervisor, or a lower clock frequency. It uses almost no memory.

use std::hint::black_box;

use partywall_clock::{self as clock, Nanos};
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::limits::within;
use crate::{Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Undisturbed duration of a quantum, 10 µs to 10 ms; measured once when the kernel is built.
    #[schemars(range(min = 10_000, max = 10_000_000))]
    quantum_ns: Nanos,
    /// Turns of the loop in a quantum, instead of measuring: the same work in every trial and on every host.
    #[schemars(range(min = 1, max = 100_000_000))]
    turns: Option<u64>,
}

impl Default for Params {
    fn default() -> Self {
        Self { quantum_ns: 100_000, turns: None }
    }
}

struct Quantum {
    turns: u64,
    state: u64,
    /// `None` if the turns were given.
    calibrated_turn_ns: Option<f64>,
}

impl Kernel for Quantum {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let start = clock::monotonic();
        self.state = spin(self.state, self.turns);
        sink.latency(clock::monotonic() - start);
        Ok(1.0)
    }

    fn facts(&self) -> crate::Params {
        [("turns".into(), json!(self.turns)), ("calibrated_turn_ns".into(), json!(self.calibrated_turn_ns))].into_iter().collect()
    }
}

/// Marsaglia's xorshift (2003), a chain of dependent instructions: each turn needs the one before.
fn spin(mut state: u64, turns: u64) -> u64 {
    for _ in 0..black_box(turns) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state)
}

/// Nanoseconds per undisturbed turn: the fastest of short attempts over some 4 ms, because no neighbour slowed that one.
fn turn_ns() -> f64 {
    const TRIES: u64 = 200;
    const TURNS: u64 = 10_000;
    let time = |state| {
        let start = clock::monotonic();
        black_box(spin(state, TURNS));
        clock::monotonic() - start
    };
    let fastest = (1..=TRIES).map(time).min().unwrap_or(0);
    fastest.max(1) as f64 / TURNS as f64
}

/// The number of turns that fill a quantum.
fn fill(quantum_ns: Nanos, turn_ns: f64) -> u64 {
    (quantum_ns as f64 / turn_ns).round().max(1.0) as u64
}

fn build(params: &crate::Params, environment: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let Params { quantum_ns, turns } = serde_json::from_value(params.clone().into())?;
    within("quantum_ns", quantum_ns, 10_000..=10_000_000)?;
    let state = environment.seed | 1;
    if let Some(turns) = turns {
        within("turns", turns, 1..=100_000_000)?;
        return Ok(Box::new(Quantum { turns, state, calibrated_turn_ns: None }));
    }
    let turn_ns = turn_ns();
    Ok(Box::new(Quantum { turns: fill(quantum_ns, turn_ns), state, calibrated_turn_ns: Some(turn_ns) }))
}

pub(crate) const ENTRY: Entry = Entry {
    name: "quantum",
    info: || KernelInfo {
        name: "quantum",
        resource: Resource::Cpu,
        summary: "does the same piece of work again and again: scheduling jitter",
        doing: "quantum-working",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::Rate { label: "quanta/s", divisor: 1.0 },
        also: None,
        latency: Latency::Own("the duration of a quantum of fixed work"),
        roles: Roles::Probe,
        // Rises like `integer`. It is only measured, so it has no lasting effect.
        settle: Settle { rise_ns: 0, release_ns: 0 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, parsed, Latencies};

    #[test]
    fn a_spin_takes_exactly_its_turns() {
        // The first numbers of xorshift64 with shifts 13, 7 and 17 from 1, computed independently of this program.
        assert_eq!(spin(1, 1), 1_082_269_761);
        assert_eq!(spin(1, 2), 1_152_992_998_833_853_505);
        assert_eq!(spin(spin(1, 400), 600), spin(1, 1000));
    }

    #[test]
    fn a_quantum_is_filled_with_turns_of_the_measured_length() {
        assert_eq!(fill(100_000, 2.0), 50_000);
        assert_eq!(fill(10, 100.0), 1);
    }

    #[test]
    fn calibration_finds_a_turn_and_keeps_it_as_a_fact() {
        let kernel = build(&parsed("{}"), &environment()).expect("defaults");
        let facts = kernel.facts();
        let turn_ns = facts["calibrated_turn_ns"].as_f64().expect("measured");
        assert!(turn_ns > 0.0);
        assert_eq!(facts["turns"].as_u64().expect("a number"), fill(100_000, turn_ns));
    }

    #[test]
    fn every_quantum_is_counted_and_timed() {
        let mut latencies = Latencies::default();
        let mut kernel = build(&parsed(r#"{"turns": 1000}"#), &environment()).expect("given turns");
        let work: f64 = (0..5).map(|_| kernel.step(&mut latencies).expect("a loop does not fail")).sum();
        assert!((work - 5.0).abs() < 0.1);
        assert_eq!(latencies.0.len(), 5);
        assert!(latencies.0.iter().all(|&latency| latency > 0));
        assert_eq!(kernel.facts()["calibrated_turn_ns"], json!(null));
    }

    #[test]
    fn quanta_out_of_range_are_refused_by_name() {
        for json in [r#"{"quantum_ns": 9999}"#, r#"{"quantum_ns": 10000001}"#, r#"{"turns": 0}"#] {
            let error = build(&parsed(json), &environment()).map(drop).expect_err(json).to_string();
            assert!(error.contains("is out of range; give"), "{error}");
        }
    }
}
