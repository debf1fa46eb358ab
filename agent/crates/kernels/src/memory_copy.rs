//! `memory-copy`: copies bytes from one block to another (VITS, section 4.3; blocks of 64 MiB in the Hyper-V study).

use partywall_sys::memory::Block;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;

use crate::{Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Resource, Roles, Settle, Sink, Unit};

const CHUNK: usize = 256 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Bytes in each of the two blocks; well above the last cache to reach memory.
    block_bytes: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { block_bytes: 64 << 20 }
    }
}

struct MemoryCopy {
    from: Block,
    to: Block,
    at: usize,
}

impl Kernel for MemoryCopy {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        let end = (self.at + CHUNK).min(self.from.bytes().len());
        self.to.bytes_mut()[self.at..end].copy_from_slice(&self.from.bytes()[self.at..end]);
        let copied = end - self.at;
        self.at = if end == self.from.bytes().len() { 0 } else { end };
        Ok(copied as f64)
    }
}

fn build(params: &crate::Params, _: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let Params { block_bytes } = serde_json::from_value(params.clone().into())?;
    if block_bytes < 4096 {
        return Err(KernelError::Parameter {
            key: "block_bytes",
            value: block_bytes.to_string(),
            why: "is below one page; give at least 4096".into(),
        });
    }
    let block = || Block::touched(block_bytes).map_err(KernelError::host(format!("allocating a block of {block_bytes} bytes")));
    Ok(Box::new(MemoryCopy { from: block()?, to: block()?, at: 0 }))
}

pub(crate) const ENTRY: Entry = Entry {
    name: "memory-copy",
    info: || KernelInfo {
        name: "memory-copy",
        resource: Resource::MemoryBandwidth,
        summary: "copies bytes from one block to another",
        unit: Unit::Bytes,
        figure: Figure::Rate { label: "MB/s", divisor: 1e6 },
        latency: Latency::Step("a copy of 256 KiB"),
        roles: Roles::Both,
        settle: Settle { rise_ns: 2_000_000, release_ns: 10_000_000 },
        params: schema_for!(Params),
    },
    build,
};
