//! The memory bandwidth family: loops that stream through blocks too large for any cache. `memory-copy` is the copy of VITS
//! (section 4.3). Blocks of 64 MiB are those of the Hyper-V study (section 5.3). Scale and triad are those of STREAM (1995).
//! `memory-latency` measures latency.

use std::hint::black_box;
use std::ops::Range;

use partywall_sys::memory::Block;
use partywall_sys::non_temporal::NonTemporal;
use partywall_sys::registers::{self, Register};
use schemars::{schema_for, JsonSchema, Schema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::{self, Pages, Round, CHUNK_BYTES};
use crate::limits::{multiple, within};
use crate::{
    Entry, Environment, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, Params, Resource, Roles, Settle, Sink, Unit,
};

const LINE_BYTES: usize = 64;
const NUMBER_BYTES: usize = size_of::<f64>();
/// The stored value and the factor: neither 0 nor 1, so that a loop without effect would be detected.
const FACTOR: f64 = 2.5;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LoadParams {
    /// Bytes in the block; must be well above the last cache to reach memory.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64), extend("multipleOf" = 64))]
    block_bytes: usize,
    /// Bytes of the block that a step processes.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64), extend("multipleOf" = 64))]
    chunk_bytes: usize,
    /// How numbers are loaded.
    loads: LoadKind,
    /// Registers that numbers pass through.
    registers: Registers,
    /// Request transparent huge pages.
    huge_pages: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct WriteParams {
    /// Bytes in the block; must be well above the last cache to reach memory.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64), extend("multipleOf" = 64))]
    block_bytes: usize,
    /// Bytes of the block that a step processes.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64), extend("multipleOf" = 64))]
    chunk_bytes: usize,
    /// How numbers are stored.
    stores: StoreKind,
    /// Registers that numbers pass through.
    registers: Registers,
    /// Request transparent huge pages.
    huge_pages: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct StoreParams {
    /// Bytes in each block; must be well above the last cache to reach memory.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64), extend("multipleOf" = 64))]
    block_bytes: usize,
    /// Bytes of each block that a step processes.
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64), extend("multipleOf" = 64))]
    chunk_bytes: usize,
    /// How results are stored.
    stores: StoreKind,
    /// Request transparent huge pages.
    huge_pages: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StoreKind {
    /// Through the caches: the line is read before it is written, and displaces others.
    Ordinary,
    /// Around the caches; x86-64 only.
    NonTemporal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LoadKind {
    /// Through the caches.
    Ordinary,
    /// Prefetched so that they displace little of the caches; x86-64 only.
    NonTemporal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Registers {
    /// Those of the compiler; around the caches the widest.
    Any,
    /// General registers, 8 bytes; x86-64 only, as those below.
    Integer,
    /// Floating-point numbers, 8 bytes.
    Float,
    /// Vectors of 16 bytes (SSE).
    Vector16,
    /// Vectors of 32 bytes (AVX).
    Vector32,
}

impl Registers {
    fn named(self) -> Option<Register> {
        match self {
            Self::Any => None,
            Self::Integer => Some(Register::Integer),
            Self::Float => Some(Register::Float),
            Self::Vector16 => Some(Register::Vector16),
            Self::Vector32 => Some(Register::Vector32),
        }
    }

    /// The widest vectors of an x86-64 CPU.
    fn widest() -> Self {
        if registers::Loads::detect(Register::Vector32, false).is_some() {
            Self::Vector32
        } else {
            Self::Vector16
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Integer => "integer",
            Self::Float => "float",
            Self::Vector16 => "vector16",
            Self::Vector32 => "vector32",
        }
    }

    fn refused(self, why: &str) -> KernelError {
        KernelError::Parameter { key: "registers", value: self.name().into(), why: why.into() }
    }
}

const BLOCK_BYTES: usize = 64 << 20;

impl Default for LoadParams {
    fn default() -> Self {
        let (loads, registers) = (LoadKind::Ordinary, Registers::Any);
        Self { block_bytes: BLOCK_BYTES, chunk_bytes: CHUNK_BYTES, loads, registers, huge_pages: false }
    }
}

impl Default for WriteParams {
    fn default() -> Self {
        let (stores, registers) = (StoreKind::Ordinary, Registers::Any);
        Self { block_bytes: BLOCK_BYTES, chunk_bytes: CHUNK_BYTES, stores, registers, huge_pages: false }
    }
}

impl Default for StoreParams {
    fn default() -> Self {
        Self { block_bytes: BLOCK_BYTES, chunk_bytes: CHUNK_BYTES, stores: StoreKind::Ordinary, huge_pages: false }
    }
}

/// The parameters that all kernels of the family have.
struct Sizes {
    block_bytes: usize,
    chunk_bytes: usize,
    huge_pages: bool,
}

/// Stores that this CPU supports.
#[derive(Clone, Copy, Debug)]
enum Stores {
    Ordinary,
    NonTemporal(NonTemporal),
}

impl Stores {
    fn of(kind: StoreKind) -> Result<Self, KernelError> {
        let refused =
            || KernelError::Parameter { key: "stores", value: "non_temporal".into(), why: "needs an x86-64 CPU; give ordinary".into() };
        match kind {
            StoreKind::Ordinary => Ok(Self::Ordinary),
            StoreKind::NonTemporal => NonTemporal::detect().map(Self::NonTemporal).ok_or_else(refused),
        }
    }

    fn facts(self) -> Params {
        let facts = match self {
            Self::Ordinary => json!({ "stores": "ordinary" }),
            Self::NonTemporal(stores) => json!({ "stores": "non_temporal", "store_bytes": stores.store_bytes() }),
        };
        facts.as_object().cloned().unwrap_or_default()
    }
}

/// Processes the same range of all blocks. The first block is written.
type Loop<const BLOCKS: usize> = fn(&mut [Block; BLOCKS], Range<usize>, Stores);
type Pass<const BLOCKS: usize> = Box<dyn Fn(&mut [Block; BLOCKS], Range<usize>) + Send>;

struct Bandwidth<const BLOCKS: usize> {
    blocks: [Block; BLOCKS],
    round: Round,
    pass: Pass<BLOCKS>,
    /// Bytes counted for each byte of the range.
    counted: usize,
    facts: Params,
}

impl<const BLOCKS: usize> Bandwidth<BLOCKS> {
    /// A kernel that stores. counted: bytes counted for each byte of a block.
    fn storing(params: &StoreParams, pass: Loop<BLOCKS>, counted: usize, environment: &Environment) -> Result<Self, KernelError> {
        let &StoreParams { block_bytes, chunk_bytes, stores, huge_pages } = params;
        let stores = Stores::of(stores)?;
        let pass = Box::new(move |blocks: &mut [Block; BLOCKS], range: Range<usize>| pass(blocks, range, stores));
        Self::build(&Sizes { block_bytes, chunk_bytes, huge_pages }, pass, counted, stores.facts(), environment)
    }

    fn build(sizes: &Sizes, pass: Pass<BLOCKS>, counted: usize, mut facts: Params, environment: &Environment) -> Result<Self, KernelError> {
        let &Sizes { block_bytes, chunk_bytes, huge_pages } = sizes;
        within("block_bytes", block_bytes, 4096..=blocks::BYTES_MAX)?;
        multiple("block_bytes", block_bytes, LINE_BYTES)?;
        within("chunk_bytes", chunk_bytes, 4096..=blocks::BYTES_MAX)?;
        multiple("chunk_bytes", chunk_bytes, LINE_BYTES)?;
        let blocks = blocks::of_ones("block_bytes", block_bytes, Pages::from_parameter(huge_pages), environment, &mut facts)?;
        facts.insert("blocks".into(), json!(BLOCKS));
        facts.insert("block_bytes".into(), json!(block_bytes));
        facts.insert("chunk_bytes".into(), json!(chunk_bytes.min(block_bytes)));
        facts.insert("counted_bytes_per_byte_of_a_block".into(), json!(counted));
        let round = Round::new(block_bytes / NUMBER_BYTES, chunk_bytes / NUMBER_BYTES);
        Ok(Self { blocks, round, pass, counted, facts })
    }
}

impl Bandwidth<1> {
    fn reading(params: &LoadParams, environment: &Environment) -> Result<Self, KernelError> {
        let &LoadParams { block_bytes, chunk_bytes, loads, registers, huge_pages } = params;
        let around = loads == LoadKind::NonTemporal;
        let refused = || match registers {
            Registers::Any => {
                KernelError::Parameter { key: "loads", value: "non_temporal".into(), why: "needs an x86-64 CPU; give ordinary".into() }
            }
            named => named.refused(NO_REGISTER),
        };
        let registers = if around && registers == Registers::Any { Registers::widest() } else { registers };
        let pass: Pass<1> = match registers.named() {
            None => Box::new(|[from], range| _ = black_box(sum(&from.floats()[range]))),
            Some(register) => {
                let loads = registers::Loads::detect(register, around).ok_or_else(refused)?;
                Box::new(move |[from], range| loads.run(&from.floats()[range]))
            }
        };
        let facts = json!({ "loads": if around { "non_temporal" } else { "ordinary" }, "registers": registers.name() });
        let facts = facts.as_object().cloned().unwrap_or_default();
        Self::build(&Sizes { block_bytes, chunk_bytes, huge_pages }, pass, 1, facts, environment)
    }

    fn writing(params: &WriteParams, environment: &Environment) -> Result<Self, KernelError> {
        let &WriteParams { block_bytes, chunk_bytes, stores, registers, huge_pages } = params;
        let Some(register) = registers.named() else {
            return Self::storing(&StoreParams { block_bytes, chunk_bytes, stores, huge_pages }, write, 1, environment);
        };
        let around = stores == StoreKind::NonTemporal;
        if around && register == Register::Float {
            return Err(registers.refused("no store of one floating-point number bypasses the caches; give integer or a vector"));
        }
        let stores = registers::Stores::detect(register, around).ok_or_else(|| registers.refused(NO_REGISTER))?;
        let pass: Pass<1> = Box::new(move |[to], range| stores.run(&mut to.floats_mut()[range], FACTOR));
        let facts = json!({ "stores": if around { "non_temporal" } else { "ordinary" }, "registers": registers.name() });
        let facts = facts.as_object().cloned().unwrap_or_default();
        Self::build(&Sizes { block_bytes, chunk_bytes, huge_pages }, pass, 1, facts, environment)
    }
}

const NO_REGISTER: &str = "this CPU does not have them; x86-64 has all but vector32, which needs AVX; give any";

impl<const BLOCKS: usize> Kernel for Bandwidth<BLOCKS> {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        let range = self.round.next();
        let bytes = range.len() * NUMBER_BYTES;
        (self.pass)(&mut self.blocks, range);
        Ok((bytes * self.counted) as f64)
    }

    fn facts(&self) -> Params {
        self.facts.clone()
    }
}

/// Adds in enough independent sums to keep vector units busy; a single sum would wait for each addition.
fn sum(numbers: &[f64]) -> f64 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    let lines = numbers.chunks_exact(LANES);
    let rest: f64 = lines.remainder().iter().sum();
    for line in lines {
        for (sum, number) in sums.iter_mut().zip(line) {
            *sum += number;
        }
    }
    sums.iter().sum::<f64>() + rest
}

fn write([to]: &mut [Block; 1], range: Range<usize>, stores: Stores) {
    let to = &mut to.floats_mut()[range];
    match stores {
        Stores::Ordinary => to.fill(black_box(FACTOR)),
        Stores::NonTemporal(stores) => stores.fill(to, FACTOR),
    }
}

fn copy([to, from]: &mut [Block; 2], range: Range<usize>, stores: Stores) {
    let (to, from) = (&mut to.floats_mut()[range.clone()], &from.floats()[range]);
    match stores {
        Stores::Ordinary => copy_by_registers(to, from),
        Stores::NonTemporal(stores) => stores.copy(to, from),
    }
}

/// Copies with ordinary loads and stores. The C library's `memcpy`, which a plain loop compiles to, may use others above some size:
/// non-temporal stores, or `rep movsb`, which on some processors does not read the line first either. A value unknown to the
/// compiler keeps the loop a loop. It changes no bit and is no slower (memory and caches, whole chunks).
fn copy_by_registers(to: &mut [f64], from: &[f64]) {
    let nothing = black_box(0_u64);
    to.iter_mut().zip(from).for_each(|(to, from)| *to = f64::from_bits(from.to_bits() ^ nothing));
}

fn scale([to, from]: &mut [Block; 2], range: Range<usize>, stores: Stores) {
    let (to, from) = (&mut to.floats_mut()[range.clone()], &from.floats()[range]);
    match stores {
        Stores::Ordinary => to.iter_mut().zip(from).for_each(|(to, from)| *to = FACTOR * from),
        Stores::NonTemporal(stores) => stores.scale(to, from, FACTOR),
    }
}

fn triad([to, first, second]: &mut [Block; 3], range: Range<usize>, stores: Stores) {
    let (to, first, second) = (&mut to.floats_mut()[range.clone()], &first.floats()[range.clone()], &second.floats()[range]);
    match stores {
        Stores::Ordinary => to.iter_mut().zip(first).zip(second).for_each(|((to, first), second)| *to = first + FACTOR * second),
        Stores::NonTemporal(stores) => stores.triad(to, first, second, FACTOR),
    }
}

/// The differences between the kernels, except their parameters.
struct About {
    name: &'static str,
    summary: &'static str,
    doing: &'static str,
    step: &'static str,
    figure: Figure,
    also: Option<Figure>,
    memory: &'static [Held],
}

/// Bytes of one array, read or written.
const ONE_WAY: Figure = Figure::Rate { label: "MB/s", divisor: 1e6 };
/// Copied bytes, each counted once.
const COPIED: Figure = Figure::Rate { label: "MB/s copied", divisor: 1e6 };
/// Bytes read plus bytes written, as STREAM counts them.
const STREAM: Figure = Figure::Rate { label: "MB/s (STREAM)", divisor: 1e6 };
/// Copied bytes as STREAM counts them: each was read and written.
const COPIED_AS_STREAM: Figure = Figure::Rate { label: "MB/s (STREAM)", divisor: 0.5e6 };

fn info(about: About, params: Schema) -> KernelInfo {
    let About { name, summary, doing, step, figure, also, memory } = about;
    KernelInfo {
        name,
        resource: Resource::MemoryBandwidth,
        summary,
        doing,
        loses: None,
        unit: Unit::Bytes,
        figure,
        also,
        latency: Latency::Step(step),
        roles: Roles::Both,
        // The path to memory is loaded at once. Displacing a last cache of some 32 MiB at some 10 GB/s takes a few milliseconds. After the
        // end a neighbour must fetch its own lines again: 256 Ki of them (16 MiB) at 80 to 100 ns each, one after the other, take some
        // 25 ms.
        settle: Settle { rise_ns: 2_000_000, release_ns: 1_000_000 },
        needs: Needs { memory, ..Needs::NOTHING },
        warnings: &[],
        params,
    }
}

pub(crate) const READ: Entry = Entry {
    name: "memory-read",
    info: || {
        info(
            About {
                name: "memory-read",
                summary: "reads a block",
                doing: "memory-reading",
                step: "a read of chunk_bytes",
                figure: ONE_WAY,
                also: None,
                memory: &[Held { by: Holder::EachThread, times: 1, parameters: &["block_bytes"] }],
            },
            schema_for!(LoadParams),
        )
    },
    build: |params, environment| {
        let params: LoadParams = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Bandwidth::reading(&params, environment)?))
    },
};

pub(crate) const WRITE: Entry = Entry {
    name: "memory-write",
    info: || {
        info(
            About {
                name: "memory-write",
                summary: "writes a block",
                doing: "memory-writing",
                step: "a write of chunk_bytes",
                figure: ONE_WAY,
                also: None,
                memory: &[Held { by: Holder::EachThread, times: 1, parameters: &["block_bytes"] }],
            },
            schema_for!(WriteParams),
        )
    },
    build: |params, environment| {
        let params: WriteParams = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Bandwidth::writing(&params, environment)?))
    },
};

/// Counts copied bytes once, as VITS and mbw do. STREAM would count them as read and as written.
pub(crate) const COPY: Entry = Entry {
    name: "memory-copy",
    info: || {
        info(
            About {
                name: "memory-copy",
                summary: "copies bytes from one block to another",
                doing: "memory-copying",
                step: "a copy of chunk_bytes",
                figure: COPIED,
                also: Some(COPIED_AS_STREAM),
                memory: &[Held { by: Holder::EachThread, times: 2, parameters: &["block_bytes"] }],
            },
            schema_for!(StoreParams),
        )
    },
    build: |params, environment| {
        let params: StoreParams = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Bandwidth::storing(&params, copy, 1, environment)?))
    },
};

pub(crate) const SCALE: Entry = Entry {
    name: "memory-scale",
    info: || {
        info(
            About {
                name: "memory-scale",
                summary: "a = q b over two blocks of numbers",
                doing: "memory-scaling",
                step: "chunk_bytes of each block",
                figure: STREAM,
                also: None,
                memory: &[Held { by: Holder::EachThread, times: 2, parameters: &["block_bytes"] }],
            },
            schema_for!(StoreParams),
        )
    },
    build: |params, environment| {
        let params: StoreParams = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Bandwidth::storing(&params, scale, 2, environment)?))
    },
};

pub(crate) const TRIAD: Entry = Entry {
    name: "memory-triad",
    info: || {
        info(
            About {
                name: "memory-triad",
                summary: "a = b + q c over three blocks of numbers",
                doing: "memory-adding",
                step: "chunk_bytes of each block",
                figure: STREAM,
                also: None,
                memory: &[Held { by: Holder::EachThread, times: 3, parameters: &["block_bytes"] }],
            },
            schema_for!(StoreParams),
        )
    },
    build: |params, environment| {
        let params: StoreParams = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Bandwidth::storing(&params, triad, 3, environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, parsed, Latencies};

    /// Slightly more than two chunks, so that the last chunk of a round is shorter.
    const BYTES: usize = 2 * CHUNK_BYTES + 4096;

    fn kinds() -> Vec<StoreKind> {
        if NonTemporal::detect().is_some() {
            vec![StoreKind::Ordinary, StoreKind::NonTemporal]
        } else {
            vec![StoreKind::Ordinary]
        }
    }

    #[test]
    fn an_ordinary_copy_changes_no_bit() {
        let from: Vec<f64> = [0, 1, u64::MAX, f64::NAN.to_bits() ^ 1, 0x7ff0_0000_0000_0001, 1 << 63].map(f64::from_bits).repeat(7);
        let mut to = vec![0.5; from.len()];
        copy_by_registers(&mut to, &from);
        assert!(to.iter().map(|number| number.to_bits()).eq(from.iter().map(|number| number.to_bits())));
    }

    /// The first block after one round, and the counted work.
    fn round<const BLOCKS: usize>(pass: Loop<BLOCKS>, counted: usize, stores: StoreKind) -> (Vec<f64>, f64) {
        let params = StoreParams { block_bytes: BYTES, stores, ..StoreParams::default() };
        let mut kernel = Bandwidth::storing(&params, pass, counted, &environment()).expect("small blocks");
        for (index, block) in kernel.blocks.iter_mut().enumerate() {
            block.floats_mut().iter_mut().enumerate().for_each(|(at, number)| *number = (at % 1000) as f64 + index as f64);
        }
        let work = (0..3).map(|_| kernel.step(&mut Latencies::default()).expect("memory does not fail")).sum();
        (kernel.blocks[0].floats().to_vec(), work)
    }

    fn same(numbers: &[f64], expected: impl Fn(f64) -> f64) {
        assert_eq!(numbers.len(), BYTES / 8);
        for (at, number) in numbers.iter().enumerate() {
            let expected = expected((at % 1000) as f64);
            assert!((number - expected).abs() < 1e-9, "at {at}: {number}, not {expected}");
        }
    }

    #[test]
    fn each_loop_computes_its_formula_and_counts_its_bytes() {
        for stores in kinds() {
            let (numbers, work) = round(write, 1, stores);
            same(&numbers, |_| 2.5);
            assert!((work - BYTES as f64).abs() < 0.5);
            let (numbers, work) = round(copy, 1, stores);
            same(&numbers, |at| at + 1.0);
            assert!((work - BYTES as f64).abs() < 0.5);
            let (numbers, work) = round(scale, 2, stores);
            same(&numbers, |at| 2.5 * (at + 1.0));
            assert!((work - 2.0 * BYTES as f64).abs() < 0.5);
            let (numbers, work) = round(triad, 3, stores);
            same(&numbers, |at| at + 1.0 + 2.5 * (at + 2.0));
            assert!((work - 3.0 * BYTES as f64).abs() < 0.5);
        }
    }

    #[test]
    fn a_read_reads_every_number() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let numbers: Vec<_> = (1..=len).map(f64::from).collect();
            assert!((sum(&numbers) - f64::from(len * (len + 1) / 2)).abs() < 1e-9, "{len} numbers");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn each_kind_of_register_reads_and_writes_a_whole_round() {
        for registers in ["any", "integer", "float", "vector16"] {
            for cached in ["ordinary", "non_temporal"] {
                let sizes = format!(r#""block_bytes": {BYTES}, "registers": "{registers}""#);
                let params = parsed(&format!(r#"{{{sizes}, "loads": "{cached}"}}"#));
                let mut kernel = (READ.build)(&params, &environment()).expect("registers of every x86-64 CPU");
                let work: f64 = (0..3).map(|_| kernel.step(&mut Latencies::default()).expect("memory does not fail")).sum();
                assert!((work - BYTES as f64).abs() < 0.5, "{params:?}: {work} bytes");
                let used = if (registers, cached) == ("any", "non_temporal") { Registers::widest().name() } else { registers };
                assert_eq!((&kernel.facts()["loads"], &kernel.facts()["registers"]), (&json!(cached), &json!(used)));
                if (registers, cached) == ("float", "non_temporal") {
                    continue;
                }
                let params: WriteParams =
                    serde_json::from_str(&format!(r#"{{{sizes}, "stores": "{cached}"}}"#)).expect("parameters of memory-write");
                let mut kernel = Bandwidth::writing(&params, &environment()).expect("registers of every x86-64 CPU");
                let work: f64 = (0..3).map(|_| kernel.step(&mut Latencies::default()).expect("memory does not fail")).sum();
                assert!((work - BYTES as f64).abs() < 0.5, "{params:?}: {work} bytes");
                same(kernel.blocks[0].floats(), |_| 2.5);
            }
        }
    }

    #[test]
    fn a_float_store_around_the_caches_is_refused_with_a_remedy() {
        let params = parsed(r#"{"registers": "float", "stores": "non_temporal"}"#);
        let error = (WRITE.build)(&params, &environment()).map(drop).expect_err("no such store").to_string();
        assert!(error.contains("registers") && error.contains("give integer or a vector"), "{error}");
    }

    #[test]
    fn blocks_of_impossible_sizes_are_refused_by_name() {
        for (json, why) in [
            (r#"{"block_bytes": 100}"#, "out of range"),
            (r#"{"block_bytes": 5000}"#, "multiple of 64"),
            (r#"{"chunk_bytes": 64}"#, "out of range"),
            (r#"{"chunk_bytes": 5000}"#, "multiple of 64"),
            (r#"{"blocks": 1}"#, "unknown field"),
        ] {
            let error = (COPY.build)(&parsed(json), &environment()).map(drop).expect_err(json).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_step_processes_one_chunk_of_the_requested_size() {
        for (chunk_bytes, step) in [(8192, 8192.0), (1 << 20, 1_048_576.0), (1 << 30, 2_097_152.0)] {
            let params = parsed(&format!(r#"{{"block_bytes": 2097152, "chunk_bytes": {chunk_bytes}}}"#));
            let mut kernel = (COPY.build)(&params, &environment()).expect("small blocks");
            let work = kernel.step(&mut Latencies::default()).expect("memory does not fail");
            assert!((work - step).abs() < 0.5, "{work} bytes in a step of chunks of {chunk_bytes}");
        }
    }

    #[test]
    fn a_kernel_that_stores_nothing_has_no_stores_parameter() {
        let error = (READ.build)(&parsed(r#"{"stores": "ordinary"}"#), &environment()).map(drop).expect_err("no stores");
        assert!(error.to_string().contains("unknown field `stores`"), "{error}");
    }

    #[test]
    fn facts_include_how_bytes_are_counted_and_stored() {
        let kernel = (TRIAD.build)(&parsed(r#"{"block_bytes": 4096}"#), &environment()).expect("small blocks");
        let facts = kernel.facts();
        assert_eq!((&facts["counted_bytes_per_byte_of_a_block"], &facts["stores"]), (&json!(3), &json!("ordinary")));
    }
}
