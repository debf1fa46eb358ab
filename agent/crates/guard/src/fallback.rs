//! The fallback process of a guard. After a guard dies, its hooks fall back or stay without help. But a hook can only drop, and
//! TCP that loses packets gets little of its guarantee. So a second process waits for the guard's death. It then adds queues
//! where TCP can be held back, at the rates that the kernel keeps from then on, and exits. It decides no rates.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardExcess, GuardHook, GuardLeaf, GuardQueue};
use serde::{Deserialize, Serialize};

use crate::error::GuardError;
use crate::place::{Networks, Place, QueueRate};
use crate::plane::{Handle, Hold, LeafRates, Memory};
use crate::round::{are_few, held_back_bps, holds_datagrams, Ahead, PACKET_BITS, WAITS_UP_TO_PPS};

/// Interval at which it checks whether the heartbeat is old, or all hooks were removed.
const LOOK_NS: Nanos = 50_000_000;

/// Instructions: what to do, and at which places.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Instructions {
    pub policy: String,
    pub queue: GuardQueue,
    pub plane: Handle,
    /// Whether leaves fall back to their guarantees when the guard's heartbeat is old. Otherwise the last rates stay.
    pub falls_back: bool,
    pub places: Vec<HeldPlace>,
}

/// One place at which excess packets are held back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HeldPlace {
    pub hook: GuardHook,
    /// Number of the interface, whose name may change.
    pub index: u32,
    pub leaf: GuardLeaf,
    /// Leaves of the hook and its rules.
    pub leaves: Vec<usize>,
    /// Minimum number of packets of the largest size that TCP may have waiting.
    pub tcp_packets: u64,
}

/// Handle of the fallback process. When it is dropped, the process continues on its own.
#[derive(Default)]
pub(crate) struct FallbackProcess {
    child: Option<Child>,
    input: Option<ChildStdin>,
}

impl FallbackProcess {
    /// Starts this same program as the fallback process. It gets its own process group, so that signals to the guard's group miss it.
    pub fn start() -> Result<Self, GuardError> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("partywall-agent")
            .arg("guard-fallback")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().map_err(GuardError::kernel("starting the fallback process"))?;
        Ok(Self { input: child.stdin.take(), child: Some(child) })
    }

    /// Whether the process has ended before the guard.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Sends new instructions. If the process is gone, this does nothing: the guard starts another one.
    pub fn send(&mut self, instructions: &Instructions) {
        let Some(pipe) = &mut self.input else { return };
        let mut line = serde_json::to_vec(instructions).expect("instructions are plain data");
        line.push(b'\n');
        let _ = pipe.write_all(&line);
    }

    /// The process, for tests that end it as others may.
    #[cfg(test)]
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("it was started, and not killed")
    }

    /// Kills it, because its hooks are removed now, and it must not add queues meanwhile.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // This fails only if the process is already gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for FallbackProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Some(mut child) = self.child.take() {
            thread::spawn(move || child.wait());
        }
    }
}

/// Waits until the guard that writes to `instructions` is gone, then carries out the last instructions.
///
/// # Errors
/// The instructions cannot be parsed.
pub fn run(instructions: impl BufRead) -> Result<(), GuardError> {
    let mut last = None;
    for line in instructions.lines() {
        last = Some(line.map_err(GuardError::kernel("the instructions of the guard"))?);
    }
    // A guard that died before it sent instructions had no hooks.
    let Some(last) = last else { return Ok(()) };
    let instructions: Instructions = serde_json::from_str(&last).map_err(GuardError::new)?;
    let memory = instructions.plane.open()?;
    while instructions.falls_back && !memory.is_stale(clock::monotonic()) {
        clock::sleep_until(clock::monotonic() + LOOK_NS);
        if !instructions.plane.is_hooked() {
            return Ok(());
        }
    }
    if instructions.plane.is_hooked() {
        let mut networks = Networks::default();
        for place in &instructions.places {
            // A place that is gone, or cannot be changed, keeps the behaviour of its hook.
            let _ = place.queue(&instructions, &memory, &mut networks);
        }
    }
    Ok(())
}

impl HeldPlace {
    fn queue(&self, instructions: &Instructions, memory: &Memory, networks: &mut Networks) -> Result<(), GuardError> {
        let at = Some(self.index);
        let mut place = Place::find(networks, &instructions.policy, instructions.queue, &self.hook, &self.leaf, self.leaves[0], at)?;
        // The hook belongs to a new guard, or another program's queue is there.
        if place.excess == GuardExcess::Dropped || !place.is_hooked_by(instructions.plane).map_err(GuardError::kernel(&self.leaf.name))? {
            return Ok(());
        }
        let rates: Vec<LeafRates> = self.leaves.iter().map(|&leaf| memory.rates(leaf, instructions.falls_back)).collect();
        let bps: u64 = rates.iter().map(|&rates| held_back_bps(bits(rates))).sum();
        place.pace(QueueRate { bps, strict: true, tcp: true, short: true }, None)?;
        for (&leaf, &rates) in self.leaves.iter().zip(&rates) {
            memory.hold(leaf, self.ahead(instructions.queue, rates));
        }
        Ok(())
    }

    /// How far packets may run ahead of their rates, because they wait in the queue.
    fn ahead(&self, queue: GuardQueue, rates: LeafRates) -> Hold {
        let ahead = Ahead { queue, hold_ns: self.leaf.hold_ns, tcp_packets: self.tcp_packets };
        let few = || self.leaves.len() == 1 && are_few(rates.bps / PACKET_BITS, rates.pps, WAITS_UP_TO_PPS);
        ahead.at(bits(rates), holds_datagrams(&self.hook) && (queue == GuardQueue::Fq || few()))
    }
}

/// The rate in bit/s. If packets are limited too, it assumes full frames.
fn bits(rates: LeafRates) -> u64 {
    rates.bps.min(rates.pps.map_or(u64::MAX, |pps| pps.saturating_mul(PACKET_BITS)))
}
