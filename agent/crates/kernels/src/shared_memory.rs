//! `shared-memory`: one thread copies messages into shared memory, and another copies them out. Bounded queues pass the slots between
//! them. The queues spin briefly and then sleep, like a semaphore.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;

use partywall_sys::memory::Block;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::batch;
use crate::peer::Peer;
use crate::{
    limits, noise, Entry, Environment, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, PacedBy, Resource, Roles,
    Settle, Sink, Unit,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Bytes of a message, up to 16 MiB.
    #[schemars(range(min = 1, max = 16_777_216))]
    message_bytes: usize,
    /// Number of messages that the shared memory holds, 1 to 64.
    #[schemars(range(min = 1, max = 64))]
    slots: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { message_bytes: 64 << 10, slots: 4 }
    }
}

struct SharedMemory {
    message: Block,
    // Declared before the peer, which ends when the queue is closed.
    full: SyncSender<Block>,
    empty: Receiver<Block>,
    received_bytes: Arc<AtomicU64>,
    sent_bytes: u64,
    slots: usize,
    _peer: Peer,
}

impl SharedMemory {
    fn new(message_bytes: usize, slots: usize) -> io::Result<Self> {
        let mut message = Block::touched(message_bytes)?;
        noise::fill(message.bytes_mut(), 1);
        let (full, arrivals) = sync_channel(slots);
        let (give_back, empty) = sync_channel(slots);
        for _ in 0..slots {
            give_back.send(Block::touched(message_bytes)?).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        let received_bytes = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received_bytes);
        let copy = Block::touched(message_bytes)?;
        let peer = Peer::spawn("shared memory reader", move || receive(&arrivals, &give_back, copy, &count))?;
        Ok(Self { message, full, empty, received_bytes, sent_bytes: 0, slots, _peer: peer })
    }

    fn send(&mut self) -> Result<f64, KernelError> {
        let gone = || KernelError::host("handing a message to the reader")(io::ErrorKind::BrokenPipe.into());
        let mut slot = self.empty.recv().map_err(|_| gone())?;
        slot.bytes_mut().copy_from_slice(self.message.bytes());
        self.full.send(slot).map_err(|_| gone())?;
        self.sent_bytes += self.message.bytes().len() as u64;
        Ok(self.message.bytes().len() as f64)
    }
}

/// Copies messages out until the sender is gone.
fn receive(arrivals: &Receiver<Block>, give_back: &SyncSender<Block>, mut copy: Block, count: &AtomicU64) {
    for slot in arrivals {
        copy.bytes_mut().copy_from_slice(slot.bytes());
        // Keep the compiler from removing the copy, because nothing reads it.
        std::hint::black_box(copy.bytes());
        count.fetch_add(copy.bytes().len() as u64, Ordering::Relaxed);
        if give_back.send(slot).is_err() {
            return;
        }
    }
}

impl Kernel for SharedMemory {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        batch::timed(sink, || self.send())
    }

    fn paced_by(&self) -> PacedBy {
        PacedBy::TimeOrWork
    }

    fn facts(&self) -> crate::Params {
        let mut facts = crate::Params::new();
        facts.insert("message_bytes".into(), json!(self.message.bytes().len()));
        facts.insert("slots".into(), json!(self.slots));
        facts.insert("sent_bytes".into(), json!(self.sent_bytes));
        facts.insert("received_bytes".into(), json!(self.received_bytes.load(Ordering::Relaxed)));
        facts
    }
}

fn build(params: &crate::Params, _: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let Params { message_bytes, slots } = serde_json::from_value(params.clone().into())?;
    let message_bytes = limits::within("message_bytes", message_bytes, 1..=16 << 20)?;
    let slots = limits::within("slots", slots, 1..=64)?;
    let kernel =
        SharedMemory::new(message_bytes, slots).map_err(KernelError::host(format!("sharing {slots} slots of {message_bytes} bytes")))?;
    Ok(Box::new(kernel))
}

pub(crate) const ENTRY: Entry = Entry {
    name: "shared-memory",
    info: || KernelInfo {
        name: "shared-memory",
        resource: Resource::LocalCommunication,
        summary: "copies messages to another thread through shared memory",
        doing: "message-copying",
        loses: None,
        unit: Unit::Bytes,
        figure: Figure::Rate { label: "MB/s", divisor: 1e6 },
        also: None,
        latency: Latency::Own("passing on one message: waiting for a free slot and copying into it"),
        roles: Roles::Both,
        // At most `slots` messages remain to be copied out; after that only cache contents remain.
        settle: Settle { rise_ns: 1_000_000, release_ns: 2_000_000 },
        needs: Needs {
            memory: &[
                Held { by: Holder::EachThread, times: 1, parameters: &["slots", "message_bytes"] },
                // In addition to the slots: the sender's message and the receiver's copy.
                Held { by: Holder::EachThread, times: 2, parameters: &["message_bytes"] },
            ],
            ..Needs::NOTHING
        },
        warnings: &[],
        params: schema_for!(Params),
    },
    build,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, error, fact, steps, Latencies};

    #[test]
    fn messages_arrive_except_those_still_in_their_slots() {
        for message_bytes in [1, 65536] {
            let mut kernel = build("shared-memory", json!({ "message_bytes": message_bytes, "slots": 2 }));
            let mut latencies = Latencies::default();
            let work = steps(kernel.as_mut(), 50, &mut latencies);
            assert_eq!(latencies.count(), work as usize / message_bytes);
            let received = fact(kernel.as_ref(), "received_bytes");
            assert!(received <= work && received >= work - 3.0 * message_bytes as f64, "{received} of {work}");
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert!(error("shared-memory", json!({ "slots": 0 })).contains("parameter slots: 0 is out of range; give 1 to 64"));
        assert!(error("shared-memory", json!({ "message_bytes": 1 << 30 })).contains("parameter message_bytes"));
    }
}
