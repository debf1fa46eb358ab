//! Where packets are met: the hook of one vif in one direction, with the queue behind it, put there, looked for and removed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use partywall_bpf::tc::{Backlog, Counters, Direction, Hook, Network, Queue, Root};
use partywall_bpf::{Namespace, NAME_PREFIX};
use partywall_clock::Nanos;
use partywall_wire::{GuardDirection, GuardExcess, GuardHook, GuardLeaf, GuardLink, GuardRemove, GuardRemoved};

use crate::error::GuardError;
use crate::plane::{number, Plane};

/// Of hooks, so that `remove` tells them from a trace's.
const NAME: &str = "guard";
/// After a trace's, which sees what was offered; before anybody's without a number.
const PRIORITY: u16 = 20;
const STRICT_BURST_NS: Nanos = 2_000_000;
/// A packet of 64 KiB that the card is to segment, with the headers of all its segments. A packet that waits and is larger than
/// what its queue's burst is changed to would never leave, nor any behind it.
const LARGEST: u64 = (64 << 10) + 128 * 66;
const LIMIT_LEAST: u64 = 2 * LARGEST;

pub(crate) struct Place {
    network: Arc<Network>,
    index: u32,
    hook: Hook,
    shown: String,
    interface: String,
    pub excess: GuardExcess,
    queued: Option<Pace>,
    burst_ns: Nanos,
    hold_ns: Nanos,
    idle_rounds: u32,
}

/// What a queue lets pass. strict: it is to hold back its senders, else only to be in nobody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub bps: u64,
    pub strict: bool,
}

impl Pace {
    /// Small changes are not worth a call, and a queue that is changed lets a burst pass.
    fn is_near(self, other: Self) -> bool {
        self.strict == other.strict && self.bps.abs_diff(other.bps) <= other.bps / 500
    }
}

/// What a look at a place found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Whole,
    Repaired,
    Moved,
}

/// Networks by the file that stands for their namespace, so that a thousand vifs of one are one socket.
#[derive(Default)]
pub(crate) struct Networks(BTreeMap<Option<String>, Arc<Network>>);

impl Networks {
    pub fn of(&mut self, hook: &GuardHook) -> Result<Arc<Network>, GuardError> {
        self.at(hook.namespace.as_deref()).map_err(GuardError::kernel(shown(hook)))
    }

    fn at(&mut self, file: Option<&str>) -> std::io::Result<Arc<Network>> {
        let file = file.map(str::to_owned);
        if let Some(network) = self.0.get(&file) {
            return Ok(network.clone());
        }
        let namespace = match &file {
            Some(path) => Namespace::at(Path::new(path)),
            None => Namespace::current(),
        };
        let network = Arc::new(namespace.and_then(|namespace| Network::of(&namespace))?);
        self.0.insert(file, network.clone());
        Ok(network)
    }
}

/// The interface that all of a pool leave by: nothing is hooked there, but its queue is looked at.
pub(crate) struct Link {
    network: Arc<Network>,
    index: u32,
    capacity_bps: u64,
    before: Option<(Nanos, u64)>,
}

impl Link {
    pub fn find(networks: &mut Networks, link: &GuardLink, capacity_bps: u64) -> Result<Self, GuardError> {
        let shown = || format!("link {}", link.interface);
        let network = networks.at(link.namespace.as_deref()).map_err(GuardError::kernel(shown()))?;
        let index = network.index(&link.interface).map_err(GuardError::kernel(shown()))?;
        Ok(Self { network, index, capacity_bps, before: None })
    }

    /// How long what comes now will wait at the interface, at the pace at which the queue was emptied since the last look; none
    /// if it has no queue. What a card holds beyond the kernel's queue is not seen.
    pub fn wait_ns(&mut self, now: Nanos) -> Option<Nanos> {
        let Backlog { bytes, passed_bytes, .. } = self.network.backlog(self.index).ok()??;
        let (at, passed) = self.before.replace((now, passed_bytes)).unwrap_or((now, passed_bytes));
        let seen = u128::from(passed_bytes.saturating_sub(passed)) * 8_000_000_000 / u128::from((now - at).max(1));
        let pace = if seen == 0 { u128::from(self.capacity_bps) } else { seen };
        Some((u128::from(bytes) * 8_000_000_000 / pace.max(1)) as Nanos)
    }
}

impl Place {
    /// Finds the interface; changes nothing.
    pub fn find(networks: &mut Networks, hook: &GuardHook, leaf: &GuardLeaf) -> Result<Self, GuardError> {
        let network = networks.of(hook)?;
        let index = network.index(&hook.interface).map_err(GuardError::kernel(shown(hook)))?;
        let root = network.root(index).map_err(GuardError::kernel(shown(hook)))?;
        // A queue is for the way out, and never in somebody else's place.
        let holdable = hook.hold && hook.direction == GuardDirection::Egress && !matches!(root, Root::Foreign(_));
        let excess = if holdable { GuardExcess::Held } else { GuardExcess::Dropped };
        // An earlier guard's: it goes on without a gap.
        let queued = (holdable && root == Root::Ours).then_some(Pace { bps: 0, strict: true });
        let direction = direction(hook.direction);
        let hooked = Hook { name: format!("{NAME_PREFIX}{NAME}"), direction, priority: PRIORITY, number: number(hook.leaf) };
        let (burst_ns, hold_ns) = (leaf.burst_ns, leaf.hold_ns);
        Ok(Self {
            network,
            index,
            hook: hooked,
            shown: shown(hook),
            interface: hook.interface.clone(),
            excess,
            queued,
            burst_ns,
            hold_ns,
            idle_rounds: 0,
        })
    }

    /// Puts the hook there; replaces one of an earlier guard without a gap.
    pub fn put(&self, plane: &Plane) -> Result<(), GuardError> {
        self.network.hook(self.index, &self.hook, plane.program()).map_err(GuardError::kernel(&self.shown))
    }

    /// Whether a queue of ours stands behind the hook.
    pub fn has_queue(&self) -> bool {
        self.queued.is_some()
    }

    /// Puts a queue there, or gives the one that is there another rate.
    pub fn pace(&mut self, pace: Pace) -> Result<(), GuardError> {
        if self.excess == GuardExcess::Held && !self.queued.is_some_and(|queued| pace.is_near(queued)) {
            self.network.queue(self.index, &queue(pace, self.burst_ns, self.hold_ns)).map_err(GuardError::kernel(&self.shown))?;
            self.queued = Some(pace);
        }
        Ok(())
    }

    /// Takes the queue away if nothing came for so many rounds: what it holds would go with it.
    pub fn unqueue_if_idle(&mut self, idle: bool, rounds: u32) {
        self.idle_rounds = if idle { self.idle_rounds.saturating_add(1) } else { 0 };
        if self.has_queue() && self.idle_rounds >= rounds && self.network.unqueue(self.index).is_ok() {
            self.queued = None;
        }
    }

    /// Looks whether all is there, and puts back what is not.
    pub fn look(&mut self, plane: &Plane) -> Result<Look, GuardError> {
        let index = self.network.index(&self.interface).map_err(GuardError::kernel(&self.shown))?;
        // Gone and made again: counters began anew, and nothing of ours is there.
        let moved = index != self.index;
        self.index = index;
        let filters = self.network.filters(index).map_err(GuardError::kernel(&self.shown))?;
        let hooked = filters.iter().any(|filter| filter.hook == self.hook && filter.program == plane.id());
        let queued = !self.has_queue() || self.network.root(index).map_err(GuardError::kernel(&self.shown))? == Root::Ours;
        if !hooked {
            self.put(plane)?;
        }
        if let Some(pace) = self.queued.take_if(|_| !queued || moved) {
            self.pace(pace)?;
        }
        Ok(match (moved, hooked && queued) {
            (true, _) => Look::Moved,
            (false, true) => Look::Whole,
            (false, false) => Look::Repaired,
        })
    }

    /// How long what comes now will wait in the queue behind the hook; none without one.
    pub fn wait_ns(&self) -> Option<Nanos> {
        let Pace { bps, .. } = self.queued?;
        let Backlog { bytes, .. } = self.network.backlog(self.index).ok()??;
        Some((u128::from(bytes) * 8_000_000_000 / u128::from(bps.max(1))) as Nanos)
    }

    /// Bytes the interface itself counted on the way of the hook.
    pub fn bytes(&self) -> Result<u64, GuardError> {
        let Counters { in_bytes, out_bytes, .. } = self.network.counters(self.index).map_err(GuardError::kernel(&self.shown))?;
        Ok(match self.hook.direction {
            Direction::Ingress => in_bytes,
            Direction::Egress => out_bytes,
        })
    }

    /// Whether the interface's own counter also holds what the hook dropped.
    pub fn counts_dropped(&self) -> bool {
        self.hook.direction == Direction::Ingress
    }
}

/// Removes hooks and queues of guards, this one's or a dead one's, from the interfaces named.
///
/// # Errors
/// The kernel refuses. An interface that is gone has nothing to remove.
pub fn remove(remove: &GuardRemove) -> Result<GuardRemoved, GuardError> {
    let mut networks = Networks::default();
    let mut removed = Vec::new();
    for hook in &remove.hooks {
        let Ok(network) = networks.of(hook) else { continue };
        let Ok(index) = network.index(&hook.interface) else { continue };
        take_away(&network, index, hook, &mut removed).map_err(GuardError::kernel(shown(hook)))?;
    }
    Ok(GuardRemoved { removed })
}

fn take_away(network: &Network, index: u32, hook: &GuardHook, removed: &mut Vec<String>) -> std::io::Result<()> {
    if network.root(index)? == Root::Ours {
        network.unqueue(index)?;
        removed.push(format!("queue at {}", shown(hook)));
    }
    let ours = format!("{NAME_PREFIX}{NAME}");
    for filter in network.filters(index)?.iter().filter(|filter| filter.hook.name == ours) {
        network.unhook(index, filter)?;
        removed.push(format!("hook at {}", shown(hook)));
    }
    network.tidy(index)
}

/// The burst of a queue that only is in nobody's way is the hook's. One that holds senders back has little: what waits in it
/// bridges the moments in which they have no CPU, and each change of rate lets a burst pass.
fn queue(pace: Pace, burst_ns: Nanos, hold_ns: Nanos) -> Queue {
    let bytes_per_second = (pace.bps / 8).max(1000);
    let during = |ns: Nanos| (u128::from(bytes_per_second) * u128::from(ns) / 1_000_000_000) as u64;
    let burst_ns = if pace.strict { burst_ns.min(STRICT_BURST_NS) } else { burst_ns };
    Queue {
        bytes_per_second,
        burst_bytes: during(burst_ns).clamp(LARGEST, 1 << 31) as u32,
        limit_bytes: u32::try_from(during(hold_ns).max(LIMIT_LEAST)).unwrap_or(u32::MAX),
    }
}

fn direction(direction: GuardDirection) -> Direction {
    match direction {
        GuardDirection::Ingress => Direction::Ingress,
        GuardDirection::Egress => Direction::Egress,
    }
}

fn shown(hook: &GuardHook) -> String {
    let way = match hook.direction {
        GuardDirection::Ingress => "ingress",
        GuardDirection::Egress => "egress",
    };
    match &hook.namespace {
        Some(namespace) => format!("{} of {} in {namespace}", way, hook.interface),
        None => format!("{} of {}", way, hook.interface),
    }
}
