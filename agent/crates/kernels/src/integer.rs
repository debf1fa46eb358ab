//! `integer`: a program without floating point in the mix of Dhrystone (Weicker, "Dhrystone: a synthetic systems programming
//! benchmark", Communications of the ACM 27, 1984). It is a new text with the published shares, not the original's. Of 100 statements
//! executed in a pass, 53 assign, 32 decide or loop or return a value, and 15 call. The operands are integers, characters,
//! enumerations, a flag, strings of 30 characters, arrays of one and two dimensions and records that point to each other.
//! Compare results only between hosts measured by this kernel; results of other Dhrystone programs are only roughly comparable.
//!
//! Each procedure's comment gives the (assignments, controls, calls) that a call of it executes. A condition counts each time it is
//! evaluated. A function call counts as a call in addition to its statement.

use std::hint::black_box;

use schemars::{schema_for, JsonSchema};
use serde::Deserialize;

use crate::{Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

/// Takes no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

/// Passes in a step: some 30 to 60 µs.
const PASSES: u32 = 1000;
/// Dhrystones per second of the VAX 11/780, which defines one DMIPS.
const VAX_DHRYSTONES: f64 = 1757.0;

type Label = [u8; 30];
const OLD_LABEL: Label = *b"CRATE 17, OUTER HALL, TOP ROW.";
const NEW_LABEL: Label = *b"CRATE 17, OUTER YARD, TOP ROW.";
const SIDE: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    Red,
    Amber,
    Green,
    Blue,
    White,
}

#[derive(Clone, Debug, PartialEq)]
struct Parcel {
    /// Index of the parcel behind this one.
    next: usize,
    colour: Colour,
    route: Colour,
    weight: i32,
    label: Label,
}

/// Variables shared by all passes, which the paper calls global.
struct Depot {
    parcels: [Parcel; 2],
    total: i32,
    open: bool,
    gate: u8,
    dock: u8,
    label: Label,
    fresh_label: Label,
    shelf: [i32; SIDE],
    grid: [[i32; SIDE]; SIDE],
}

impl Depot {
    fn new() -> Self {
        let parcel = Parcel { next: 1, colour: Colour::Red, route: Colour::Red, weight: 0, label: OLD_LABEL };
        Self {
            parcels: [parcel.clone(), Parcel { next: 0, ..parcel }],
            total: 0,
            open: false,
            gate: 0,
            dock: 0,
            label: OLD_LABEL,
            fresh_label: OLD_LABEL,
            shelf: [0; SIDE],
            grid: [[0; SIDE]; SIDE],
        }
    }

    /// Pass number `number`: (12, 8, 11) itself and (53, 32, 15) with all that it calls. Returns the values of its variables.
    fn pass(&mut self, number: i32) -> (i32, i32, i32) {
        self.open_gate();
        self.tidy();
        let mut low = black_box(2);
        let mut high = black_box(5);
        let mut gap = 0;
        relabel(&mut self.fresh_label);
        let colour = black_box(Colour::Blue);
        self.open = !rises(&self.label, &self.fresh_label);
        while low < high - 1 {
            gap = 5 * low - high;
            weigh(low, high, &mut gap);
            low += 1;
        }
        self.place(black_box(4), number);
        self.pass_on(0);
        for mark in self.gate..=self.dock {
            if colour == class(mark, b'C') {
                low = number;
            }
        }
        high *= low;
        low = high / gap;
        high = 7 * (high - gap) - low;
        settle(&mut low);
        (low, high, gap)
    }

    /// (3, 0, 0)
    #[inline(never)]
    fn open_gate(&mut self) {
        self.gate = b'A';
        self.dock = b'C';
        self.open = self.gate < self.dock;
    }

    /// (2, 0, 0)
    #[inline(never)]
    fn tidy(&mut self) {
        self.open = !self.open || self.gate == b'A';
        self.dock = self.gate + 1;
    }

    /// (8, 4, 0)
    #[inline(never)]
    fn place(&mut self, row: u8, weight: i32) {
        let at = usize::from(row) * 2 + 3;
        self.shelf[at] = weight;
        self.shelf[at + 7] = self.shelf[at].wrapping_sub(i32::from(row));
        for step in 0..3_u8 {
            self.grid[at][at + usize::from(step)] = self.shelf[at].wrapping_add(i32::from(step));
        }
        self.grid[at][0] = self.grid[at][0].wrapping_add(1);
        self.total = self.grid[at][at + 2];
    }

    /// (6, 1, 1)
    #[inline(never)]
    fn pass_on(&mut self, place: usize) {
        let next = self.parcels[place].next;
        self.parcels[next] = self.parcels[place].clone();
        self.parcels[place].weight = self.total;
        self.parcels[next].weight = self.parcels[next].weight.wrapping_add(10);
        self.parcels[next].next = place;
        if self.parcels[next].colour == Colour::Red {
            self.parcels[next].route = reroute(self.parcels[next].colour);
        } else {
            self.parcels[place] = self.parcels[next].clone();
        }
    }
}

/// (2, 3, 1)
#[inline(never)]
fn reroute(colour: Colour) -> Colour {
    let mut route = colour;
    if is_green(colour) {
        route = Colour::Amber;
    }
    match colour {
        Colour::Red => route = Colour::White,
        Colour::Amber | Colour::Blue => route = Colour::Green,
        Colour::Green | Colour::White => {}
    }
    route
}

/// (1, 2, 0)
#[inline(never)]
fn is_green(colour: Colour) -> bool {
    let mine = black_box(colour);
    if mine == Colour::Green {
        return true;
    }
    false
}

/// (2, 2, 0)
#[inline(never)]
fn class(left: u8, right: u8) -> Colour {
    let low = left;
    let gap = right.wrapping_sub(low);
    if gap > 2 {
        return Colour::Amber;
    }
    Colour::Red
}

/// Whether `right` comes after `left`; (3, 3, 2), including one call of the library's comparison.
#[inline(never)]
fn rises(left: &Label, right: &Label) -> bool {
    let mut at = 2;
    loop {
        at += 3;
        if class(left[at], right[at]) != Colour::Red || at >= 5 {
            break;
        }
    }
    if left < right {
        at += 7;
        return black_box(at) > 0;
    }
    false
}

/// (2, 0, 0)
#[inline(never)]
fn weigh(left: i32, right: i32, out: &mut i32) {
    let sum = left + 2;
    *out = sum + right;
}

/// (6, 5, 0)
#[inline(never)]
fn settle(out: &mut i32) {
    let mut rest = *out + 10;
    loop {
        rest -= 4;
        if rest < 0 {
            break;
        }
    }
    *out = rest;
}

/// The library's copy of a string.
#[inline(never)]
fn relabel(label: &mut Label) {
    label.copy_from_slice(black_box(&NEW_LABEL));
}

/// What a thread writes in each pass, on cache lines of its own, and not beside another thread's: in pairs, because processors fetch
/// lines in pairs. On shared lines, two threads did a third of the work.
#[repr(align(128))]
struct Integer {
    depot: Depot,
    passes: i32,
}

impl Integer {
    fn new() -> Self {
        Self { depot: Depot::new(), passes: 0 }
    }
}

impl Kernel for Integer {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        for _ in 0..PASSES {
            self.passes = self.passes.wrapping_add(1);
            black_box(self.depot.pass(self.passes));
        }
        black_box(&self.depot);
        Ok(f64::from(PASSES))
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "integer",
    info: || KernelInfo {
        name: "integer",
        resource: Resource::Cpu,
        summary: "a program without floating point in Dhrystone's mix of statements",
        doing: "computing",
        loses: None,
        unit: Unit::Dhrystones,
        figure: Figure::Rate { label: "DMIPS", divisor: VAX_DHRYSTONES },
        also: None,
        latency: Latency::Step("1000 passes"),
        roles: Roles::Both,
        // It uses the execution units from the first instruction. A neighbour on the same CPU is affected in turns of the scheduler, some
        // 3 to 4 ms. One on another CPU is affected by the clock frequency, which follows the load in milliseconds.
        settle: Settle { rise_ns: 1_000_000, release_ns: 1_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, _| {
        let Params {} = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Integer::new()))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, parsed, Latencies};

    #[test]
    fn no_thread_writes_to_a_pair_of_lines_of_another() {
        const PAIR: usize = 128;
        assert_eq!(size_of::<Integer>() % PAIR, 0);
        for each in [Box::new(Integer::new()), Box::new(Integer::new())] {
            assert_eq!(std::ptr::from_ref(&*each).addr() % PAIR, 0);
        }
    }

    /// Values after the passes, worked out by hand: `low` becomes 4 in the loop and `gap` 3 + 2 + 5. The products give 20, 20 / 10
    /// and 7 (20 − 10) − 2. The last loop subtracts 4 from 12 until it is negative.
    #[test]
    fn every_pass_leaves_the_variables_worked_out_by_hand() {
        let mut depot = Depot::new();
        for number in 1..=100 {
            assert_eq!(depot.pass(number), (-4, 68, 10));
        }
        assert_eq!((depot.gate, depot.dock, depot.open, depot.total), (b'A', b'B', false, 102));
        assert_eq!((depot.shelf[11], depot.shelf[18], depot.shelf.iter().sum::<i32>()), (100, 96, 196));
        assert_eq!(depot.grid[11][11..14], [100, 101, 102]);
        assert_eq!((depot.grid[11][0], depot.grid.iter().flatten().sum::<i32>()), (100, 403));
        let first = Parcel { next: 1, colour: Colour::Red, route: Colour::Red, weight: 102, label: OLD_LABEL };
        assert_eq!(depot.parcels, [first.clone(), Parcel { next: 0, route: Colour::White, weight: 111, ..first }]);
    }

    #[test]
    fn functions_decide_both_ways() {
        assert_eq!([class(b'A', b'C'), class(b'A', b'D'), class(b'B', b'A')], [Colour::Red, Colour::Amber, Colour::Amber]);
        assert_eq!([rises(&OLD_LABEL, &NEW_LABEL), rises(&NEW_LABEL, &OLD_LABEL), rises(&OLD_LABEL, &OLD_LABEL)], [true, false, false]);
        assert_eq!([is_green(Colour::Green), is_green(Colour::White)], [true, false]);
        let routes = [Colour::Red, Colour::Amber, Colour::Green, Colour::Blue, Colour::White].map(reroute);
        assert_eq!(routes, [Colour::White, Colour::Green, Colour::Amber, Colour::Green, Colour::White]);
    }

    #[test]
    fn a_step_makes_as_many_passes_as_it_counts() {
        let mut kernel = Integer::new();
        let work: f64 = (0..3).map(|_| kernel.step(&mut Latencies::default()).expect("arithmetic does not fail")).sum();
        assert_eq!(f64::from(kernel.depot.grid[11][0]).to_bits(), work.to_bits());
    }

    #[test]
    fn passes_continue_beyond_the_largest_number() {
        let mut kernel = Integer { passes: i32::MAX - 10, ..Integer::new() };
        kernel.step(&mut Latencies::default()).expect("arithmetic does not fail");
        assert_eq!(kernel.passes, i32::MIN + 989);
    }

    #[test]
    fn a_parameter_is_refused() {
        (ENTRY.build)(&parsed(r#"{"passes": 5}"#), &environment()).map(drop).expect_err("it takes none");
    }
}
