//! Places where packets are controlled: the hook of one vif in one direction, and the queue behind it. Adds, checks, removes them.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use partywall_bpf::tc::{Backlog, Direction, Hook, Interface, Network, Peer, Queue, QueueKind, Root};
use partywall_bpf::{Namespace, NAME_PREFIX};
use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardDirection, GuardExcess, GuardHook, GuardLeaf, GuardLink, GuardMove, GuardQueue, GuardRemove, GuardRemoved};

use crate::check::Count;
use crate::error::GuardError;
use crate::overrun::{Granted, Overrun};
use crate::plane::{number, Handle, Plane};
use crate::round::holds_datagrams;
use crate::whereabouts::{whereabouts, Own, Where};

/// Name of the hooks, so that `remove` distinguishes them from those of a trace.
const NAME: &str = "guard";
/// After a trace's hook, which sees the offered traffic, and before hooks without a priority.
const PRIORITY: u16 = 20;
/// Name of hooks on the other end of a tenant's veth. Another program's guard may be hooked there as well.
const BACKSTOP: &str = "backstop";
const BACKSTOP_PRIORITY: u16 = 21;
/// Name of hooks that lead packets to a detour. They run after all hooks that decide where packets enter.
const LEAD: &str = "lead";
const LEAD_PRIORITY: u16 = 22;
/// Name of the interface through which packets of interface `index` make a detour: this, and `index`.
const DETOUR: &str = "pwguard";
/// `ENODEV`.
const NO_DEVICE: i32 = 19;
/// Maximum characters of a policy's name in the names of its hooks.
const NAME_CHARS: usize = 60;
/// Burst of a queue that holds its senders back, and of one that is short.
const STRICT_BURST_NS: Nanos = 2_000_000;
const SHORT_BURST_NS: Nanos = 10_000_000;
/// A queue is short if no more waits than leaves within this time.
const SHORT_NS: Nanos = 15_000_000;
/// So many times in a row must a queue of datagrams be found short, at one rate, before it gets the larger burst.
pub(crate) const SHORT_LOOKS: u32 = 10;
/// A queue passes a packet of TCP whole if it leaves within this time. Above some 30 Mbit/s, none is segmented.
const WHOLE_WITHIN_NS: Nanos = 20_000_000;
/// The largest frame leaves within this time, also at the lowest rate.
const STUCK_NS: Nanos = 500_000_000;
/// A packet of 64 KiB that the network card segments, with the headers of all its segments.
pub(crate) const LARGEST: u64 = (64 << 10) + 128 * 66;
/// Bytes that TCP keeps in flight locally (TCP small queues: two packets, and one that is begun), with some room, also for few
/// datagrams behind them.
const LIMIT_LEAST: u64 = 5 * LARGEST;
/// Link header, with VLAN tags.
const HEADER: u64 = 32;
/// A full frame.
const FRAME: u64 = 1514;
/// A frame with nothing but the headers of Ethernet, IP and UDP.
const FRAME_LEAST: u64 = 42;
/// Frames that a departure-time queue can hold. The minimum is the kernel's default. Frames up to the maximum take some 200 MB of the
/// kernel's memory.
const ROOM: RangeInclusive<u32> = 10_000..=1 << 18;
/// Maximum delay of a packet after its departure time: the permitted wait divided by this.
const SLACK_PART: Nanos = 64;
const SLACK_NS: RangeInclusive<Nanos> = 10_000..=500_000;

/// One hook on one interface.
struct End {
    /// None after its namespace was released.
    network: Option<Arc<Network>>,
    index: u32,
    link_header: bool,
    hook: Hook,
    /// Where the hook leads packets that make a detour. None if it decides.
    to: Option<u32>,
}

impl End {
    fn new(network: Arc<Network>, index: u32, hook: Hook) -> io::Result<Self> {
        let link_header = network.interface(index)?.has_link_header();
        Ok(Self { network: Some(network), index, link_header, hook, to: None })
    }

    fn network(&self) -> io::Result<&Arc<Network>> {
        self.network.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn is_in(&self, network: &Arc<Network>) -> bool {
        self.network.as_ref().is_some_and(|own| Arc::ptr_eq(own, network))
    }

    fn put(&self, plane: &Plane) -> io::Result<()> {
        match self.to {
            Some(to) => self.network()?.lead(self.index, &self.hook, plane.lead(), to),
            None => self.network()?.hook(self.index, &self.hook, plane.program(self.link_header)),
        }
    }

    fn is_there(&self, plane: Handle) -> io::Result<bool> {
        let program = if self.to.is_some() { plane.lead() } else { plane.program(self.link_header) };
        let filters = self.network()?.filters(self.index)?;
        Ok(filters.iter().any(|filter| filter.hook == self.hook && filter.program == program))
    }

    /// Removes this hook and nothing else.
    fn take_away(&self) -> io::Result<()> {
        for filter in self.network()?.filters(self.index)?.iter().filter(|filter| filter.hook == self.hook) {
            self.network()?.unhook(self.index, filter)?;
        }
        self.network()?.tidy(self.index)
    }
}

/// The way of packets that have to wait on ingress, where no queue can be: through an interface that gives them back.
struct Detour {
    /// Leads them there.
    lead: End,
    /// The hook on that interface, in front of its queue.
    end: End,
}

impl Detour {
    /// `from`: the hook whose packets make the detour. `index`: the interface through which they make it.
    fn new(from: &End, index: u32) -> io::Result<Self> {
        let network = from.network()?.clone();
        let end = End::new(network.clone(), index, Hook { direction: Direction::Egress, ..from.hook.clone() })?;
        let hook = Hook { name: from.hook.name.replacen(NAME, LEAD, 1), priority: LEAD_PRIORITY, ..from.hook.clone() };
        Ok(Self { lead: End { to: Some(index), ..End::new(network, from.index, hook)? }, end })
    }

    /// In the order in which they are put.
    fn ends(&self) -> [&End; 2] {
        [&self.end, &self.lead]
    }

    fn remove(&self) -> io::Result<()> {
        self.lead.take_away()?;
        self.end.network()?.remove_detour(self.end.index)
    }
}

pub(crate) struct Place {
    /// The leaf of its hook.
    leaf: usize,
    end: End,
    /// The other end of a veth that its tenant can access. Both ends exist equally long, so this one shows where the tenant's is.
    backstop: Option<End>,
    backstop_hook: Option<Hook>,
    /// The other end of the veth, as seen when the backstop was last looked for.
    peer: Option<Peer>,
    /// File of the namespace.
    pub space: Option<String>,
    shown: String,
    /// Name of the interface in the policy.
    interface: String,
    /// Its current name.
    pub called: String,
    pub excess: GuardExcess,
    detour: Option<Detour>,
    kind: QueueKind,
    queued: Option<QueueRate>,
    /// Burst of the existing queue, which segments larger packets. If the burst became smaller than a waiting packet, that packet
    /// would never leave, nor would any behind it. So below the largest packet it shrinks only while the queue is empty.
    queue_burst: u64,
    /// What the queue has passed beyond its grants.
    overrun: Overrun,
    /// How many times in a row the queue was found short since its rate changed, if it holds datagrams back. Sockets that are full
    /// with so little cover no longer time without a CPU, and the small burst does not keep what is granted meanwhile.
    short_looks: u32,
    /// When the burst shrank, and the bytes that had passed by then: a large packet may have arrived at that moment.
    shrunk: Option<(Nanos, u64)>,
    /// Largest size that the interface sends in one piece.
    frame: u64,
    veth: bool,
    burst_ns: Nanos,
    hold_ns: Nanos,
    ceiling_bps: u64,
    idle_rounds: u32,
}

/// Rate of a queue. `strict`: the queue must hold back its senders. Otherwise it must only stay out of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueRate {
    pub bps: u64,
    pub strict: bool,
    /// Packets that the network card segments pass in one piece.
    pub tcp: bool,
    /// Its senders want more than they were granted, so that whatever passes beyond that is taken from others.
    pub short: bool,
}

impl QueueRate {
    /// Settings of an earlier guard's queue, of either kind.
    const UNKNOWN: Self = Self { bps: 0, strict: true, tcp: true, short: true };

    fn bytes_per_second(self) -> u64 {
        (self.bps / 8).max(1000)
    }

    fn bytes_during(self, ns: Nanos) -> u64 {
        (u128::from(self.bytes_per_second()) * u128::from(ns) / 1_000_000_000) as u64
    }

    /// A queue that only stays out of the way has the hook's burst. A queue that holds senders back has a small burst: its waiting
    /// packets cover moments in which the senders have no CPU, and each rate change lets a burst pass.
    ///
    /// A large packet of TCP is segmented where it alone would take longer than [`WHOLE_WITHIN_NS`]. The kernel wakes the queue when
    /// its first packet may leave at the rate of before, or when another arrives: at a trickle, a packet of 64 KiB would block a
    /// sender for 8 s, whatever it is granted next.
    pub fn burst_bytes(self, frame: u64, burst_ns: Nanos) -> u64 {
        let burst_ns = if self.strict { burst_ns.min(STRICT_BURST_NS) } else { burst_ns };
        let least = if self.tcp { self.bytes_during(WHOLE_WITHIN_NS).min(LARGEST).max(2 * frame) } else { frame };
        self.bytes_during(burst_ns).clamp(least, 1 << 31)
    }

    /// Small changes are not worth a system call, and each change of a queue lets a burst pass.
    fn is_near(self, other: Self) -> bool {
        self.strict == other.strict && self.tcp <= other.tcp && self.bps.abs_diff(other.bps) <= other.bps / 500
    }
}

/// Result of a check of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub whereabouts: Where,
    /// Whether it has another name than at the last check.
    pub renamed: bool,
    /// Whether no hook or queue was missing.
    pub whole: bool,
    /// Bytes that a new interface carried before it was hooked.
    pub unhooked_bytes: u64,
}

/// Networks by the file of their namespace, so that a thousand vifs in one namespace share a socket.
#[derive(Default)]
pub(crate) struct Networks(BTreeMap<Option<String>, (Namespace, Arc<Network>)>);

impl Networks {
    pub fn of(&mut self, hook: &GuardHook) -> Result<Arc<Network>, GuardError> {
        self.at(hook.namespace.as_deref()).map_err(GuardError::kernel(shown(hook)))
    }

    /// All namespaces opened so far, with their files.
    pub fn namespaces(&self) -> (Vec<Option<String>>, Vec<Namespace>) {
        self.0.iter().map(|(file, (namespace, _))| (file.clone(), namespace.clone())).unzip()
    }

    /// Removes the namespaces whose file is gone or refers to another namespace now. Returns these files and the old namespaces.
    pub fn outdated(&mut self) -> Vec<(Option<String>, Arc<Network>)> {
        let is_outdated = |file: &Option<String>, namespace: &Namespace| {
            file.is_some() && open(file.as_deref()).and_then(|now| now.number()).ok() != namespace.number().ok()
        };
        let files = self.0.iter().filter(|(file, (namespace, _))| is_outdated(file, namespace)).map(|(file, _)| file.clone());
        let files: Vec<_> = files.collect();
        files.into_iter().filter_map(|file| self.0.remove(&file).map(|(_, network)| (file, network))).collect()
    }

    /// The namespace of a file, if there is one.
    pub fn namespace(&mut self, file: Option<&str>) -> Option<Namespace> {
        self.at(file).ok()?;
        self.0.get(&file.map(str::to_owned)).map(|(namespace, _)| namespace.clone())
    }

    /// Opens this process's own namespace too, and all named ones that permit it.
    fn all_named(&mut self) {
        for file in std::iter::once(None).chain(named().into_iter().map(Some)) {
            // Skip a file that no longer refers to a namespace.
            let _ = self.at(file.as_deref());
        }
    }

    fn each(&self) -> Vec<(Option<String>, Arc<Network>)> {
        self.0.iter().map(|(file, (_, network))| (file.clone(), network.clone())).collect()
    }

    fn at(&mut self, file: Option<&str>) -> io::Result<Arc<Network>> {
        let file = file.map(str::to_owned);
        if let Some((_, network)) = self.0.get(&file) {
            return Ok(network.clone());
        }
        let namespace = open(file.as_deref())?;
        let network = Arc::new(Network::of(&namespace)?);
        self.0.insert(file, (namespace, network.clone()));
        Ok(network)
    }

    /// The other end of a veth: in this process's namespace, in a known namespace, or in a named one.
    fn other_end(&mut self, network: &Arc<Network>, index: u32) -> io::Result<Option<(Arc<Network>, u32)>> {
        let Some(peer) = network.interface(index)?.peer else { return Ok(None) };
        let Some(number) = peer.namespace else { return Ok(Some((network.clone(), peer.index))) };
        self.at(None)?;
        let mut files: Vec<Option<String>> = self.0.keys().cloned().collect();
        files.extend(named().into_iter().map(Some).filter(|file| !self.0.contains_key(file)));
        for file in files {
            let known = self.0.get(&file).map(|(namespace, _)| namespace.clone());
            let Ok(namespace) = known.map_or_else(|| open(file.as_deref()), Ok) else { continue };
            if network.number_of(&namespace)? == Some(number) {
                return Ok(Some((self.at(file.as_deref())?, peer.index)));
            }
        }
        Ok(None)
    }
}

fn open(file: Option<&str>) -> io::Result<Namespace> {
    file.map_or_else(Namespace::current, |path| Namespace::at(Path::new(path)))
}

fn named() -> Vec<String> {
    let files = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    files.filter_map(|entry| entry.path().into_os_string().into_string().ok()).collect()
}

/// Frames for which a departure-time queue has room. The hook decides by bytes what waits, TCP for up to twice `hold_ns`. All of it may
/// be the smallest frames: a queue that is full of packets drops those of every class. With rates at which these would need too much
/// memory, there is room for full frames at least.
fn room(ceiling_bps: u64, hold_ns: Nanos) -> u32 {
    let bytes = u128::from(ceiling_bps).saturating_mul(2 * u128::from(hold_ns)) / 8_000_000_000;
    let frames = |size: u64| u32::try_from(bytes.div_ceil(u128::from(size))).unwrap_or(u32::MAX);
    frames(FRAME_LEAST).clamp(*ROOM.start(), *ROOM.end()).max(frames(FRAME))
}

/// The kind of queue, the same in every namespace: the requested kind, or `fq` if the kernel has it.
pub(crate) fn queue(requested: Option<GuardQueue>) -> Result<GuardQueue, GuardError> {
    let tried = Namespace::current().and_then(|own| Network::of(&own)?.has_departures());
    match (requested, tried.map_err(GuardError::kernel("trying whether there is fq"))?) {
        (Some(GuardQueue::Fq), false) => {
            Err(GuardError::lacking("this kernel has no fq (its module is sch_fq); leave `queue` out to have tbf"))
        }
        (Some(requested), _) => Ok(requested),
        (None, true) => Ok(GuardQueue::Fq),
        (None, false) => Ok(GuardQueue::Tbf),
    }
}

/// The interface that all vifs of a pool leave by. It has no hook, but its queue is read.
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

    pub fn is_in(&self, network: &Arc<Network>) -> bool {
        Arc::ptr_eq(&self.network, network)
    }

    /// The wait of the next packet at this interface, at the rate at which the queue drained since the last reading. None if it has
    /// no queue. Packets that the network card holds after the kernel's queue are not visible.
    pub fn wait_ns(&mut self, now: Nanos) -> Option<Nanos> {
        let Backlog { bytes, passed_bytes, .. } = self.network.backlog(self.index).ok()??;
        let (at, passed) = self.before.replace((now, passed_bytes)).unwrap_or((now, passed_bytes));
        let seen = u128::from(passed_bytes.saturating_sub(passed)) * 8_000_000_000 / u128::from((now - at).max(1));
        let pace = if seen == 0 { u128::from(self.capacity_bps) } else { seen };
        Some((u128::from(bytes) * 8_000_000_000 / pace.max(1)) as Nanos)
    }
}

impl Place {
    /// Finds the interface, and its other end if requested; changes nothing. `backstop`: the leaf of its backstop.
    /// `policy`: the owner of the hook. `queue`: the kind of queue that holds packets back. `index`: the number of the interface, if
    /// it is known; its name may have changed.
    pub fn find(
        networks: &mut Networks,
        policy: &str,
        queue: GuardQueue,
        hook: &GuardHook,
        leaf: &GuardLeaf,
        backstop: usize,
        index: Option<u32>,
    ) -> Result<Self, GuardError> {
        let network = networks.of(hook)?;
        let failure = || GuardError::kernel(shown(hook));
        let index = index.map_or_else(|| network.index(&hook.interface), Ok).map_err(failure())?;
        let root = network.root(index).map_err(failure())?;
        let interface = network.interface(index).map_err(failure())?;
        // A queue works on egress only, and must never replace another program's queue. On ingress, packets can make a detour.
        let has_queue = queue == GuardQueue::Fq || network.has_rates().map_err(failure())?;
        let holdable = has_queue
            && match hook.direction {
                GuardDirection::Egress => !matches!(root, Root::Foreign(_)),
                GuardDirection::Ingress => interface.has_link_header() && network.has_detours().map_err(failure())?,
            };
        let excess = match (holdable, holds_datagrams(hook)) {
            (false, _) => GuardExcess::Dropped,
            (true, true) => GuardExcess::Held,
            (true, false) => GuardExcess::TcpHeld,
        };
        let direction = direction(hook.direction);
        let hooked = Hook { name: called(NAME, policy), direction, priority: PRIORITY, number: number(hook.leaf) };
        let end = End::new(network.clone(), index, hooked).map_err(failure())?;
        let detour = match (holdable, direction, network.index(&detour_name(index))) {
            (true, Direction::Ingress, Ok(detour)) => Some(Detour::new(&end, detour).map_err(failure())?),
            _ => None,
        };
        // An earlier guard's queue continues without a gap.
        let taken_over = match direction {
            Direction::Egress => holdable && matches!(root, Root::Ours(_)),
            Direction::Ingress => detour.is_some(),
        };
        let mut place = Self {
            leaf: hook.leaf,
            end,
            backstop: None,
            backstop_hook: hook.backstop.then(|| backstop_hook(policy, number(backstop))),
            peer: interface.peer,
            space: hook.namespace.clone(),
            shown: shown(hook),
            interface: hook.interface.clone(),
            called: interface.name.clone(),
            excess,
            detour,
            kind: kind(queue),
            queued: taken_over.then_some(QueueRate::UNKNOWN),
            queue_burst: if taken_over { LARGEST } else { 0 },
            overrun: Overrun::default(),
            short_looks: 0,
            shrunk: None,
            frame: frame(&interface),
            veth: interface.peer.is_some(),
            burst_ns: leaf.burst_ns,
            hold_ns: leaf.hold_ns,
            ceiling_bps: leaf.ceiling_bps,
            idle_rounds: 0,
        };
        place.find_backstop(networks).map_err(failure())?;
        Ok(place)
    }

    /// Keeps the backstop that there is if the interface has no other end that can be found: its tenant may still use the old one.
    fn find_backstop(&mut self, networks: &mut Networks) -> io::Result<()> {
        let Some(hook) = self.backstop_hook.clone() else { return Ok(()) };
        if let Some((network, index)) = networks.other_end(self.end.network()?, self.end.index)? {
            self.backstop = Some(End::new(network, index, hook)?);
        }
        Ok(())
    }

    /// Adds the hooks. Replaces those of an earlier guard without a gap.
    pub fn put(&self, plane: &Plane) -> Result<(), GuardError> {
        self.ends().try_for_each(|end| end.put(plane)).map_err(GuardError::kernel(&self.shown))?;
        plane.detour(self.leaf, self.detour().unwrap_or(0));
        Ok(())
    }

    /// Its hooks, in the order in which they are put.
    fn ends(&self) -> impl Iterator<Item = &End> {
        self.detour.iter().flat_map(Detour::ends).chain(&self.backstop).chain([&self.end])
    }

    /// Undoes [`Place::put`], wherever the interface is now.
    pub fn take_away(&self) {
        let ends = self.backstop.iter().chain([&self.end]);
        for end in ends {
            // Report the first error if clean-up fails too.
            let _ = end.take_away();
        }
        if let Some(detour) = &self.detour {
            let _ = detour.remove();
        }
    }

    /// Whether any guard's hook is at this place.
    pub fn is_taken(&self) -> Result<bool, GuardError> {
        let Hook { direction, priority, .. } = &self.end.hook;
        let filters = self.end.network().and_then(|network| network.filters(self.end.index)).map_err(GuardError::kernel(&self.shown))?;
        Ok(filters.iter().any(|f| is_guards(&f.hook, NAME) && f.hook.direction == *direction && f.hook.priority == *priority))
    }

    /// Whether the hook at this place belongs to that plane.
    pub fn is_hooked_by(&self, plane: Handle) -> io::Result<bool> {
        self.end.is_there(plane)
    }

    /// Whether a requested backstop is missing.
    pub fn lacks_backstop(&self) -> bool {
        self.backstop_hook.is_some() && self.backstop.is_none()
    }

    pub fn has_backstop(&self) -> bool {
        self.backstop.is_some()
    }

    /// Removes hooks and queue.
    pub fn clear(&mut self, plane: &Plane) {
        self.take_away();
        if self.has_queue() {
            // The interface may be gone or unreachable.
            let _ = self.unqueue(plane);
        }
    }

    /// Whether a change of interface `index` in its namespace may concern this place. `name`: the name that it has now.
    pub fn may_be(&self, index: u32, name: Option<&str>) -> bool {
        index == self.end.index || self.detour() == Some(index) || name == Some(&self.interface)
    }

    /// Whether interface `index`, of that name, is not the one that was hooked last.
    pub fn may_replace(&self, index: u32, name: &str) -> bool {
        index != self.end.index && name == self.interface
    }

    /// Number of the interface at the last check.
    pub fn index(&self) -> u32 {
        self.end.index
    }

    /// Whether a queue of this guard is behind the hook.
    pub fn has_queue(&self) -> bool {
        self.queued.is_some()
    }

    /// The interface through which packets make a detour.
    pub fn detour(&self) -> Option<u32> {
        self.detour.as_ref().map(|detour| detour.end.index)
    }

    /// Adds a queue, or changes the rate of the existing one. `plane`: for the hook on a detour; without it, none is added.
    pub fn pace(&mut self, pace: QueueRate, plane: Option<&Plane>) -> Result<(), GuardError> {
        self.repace(pace, plane).map_err(GuardError::kernel(&self.shown))
    }

    /// Adds the interface for a detour, with its hooks.
    fn add_detour(&mut self, plane: &Plane) -> io::Result<()> {
        let index = self.end.network()?.add_detour(&detour_name(self.end.index))?;
        let detour = Detour::new(&self.end, index)?;
        detour.ends().into_iter().try_for_each(|end| end.put(plane))?;
        self.detour = Some(detour);
        // Not before its hooks are there: a packet that is sent through it meets no other.
        plane.detour(self.leaf, index);
        Ok(())
    }

    /// Stops sending packets through the detour, and forgets it.
    fn leave_detour(&mut self, plane: &Plane) -> Option<Detour> {
        plane.detour(self.leaf, 0);
        self.detour.take()
    }

    /// Where the queue is.
    fn queue_end(&self) -> io::Result<&End> {
        match self.end.hook.direction {
            Direction::Egress => Ok(&self.end),
            Direction::Ingress => Ok(&self.detour.as_ref().ok_or(io::ErrorKind::NotFound)?.end),
        }
    }

    fn repace(&mut self, pace: QueueRate, plane: Option<&Plane>) -> io::Result<()> {
        if self.excess == GuardExcess::Dropped {
            return Ok(());
        }
        let now = clock::monotonic();
        let (wanted, stuck) = (pace.burst_bytes(self.frame, self.burst_ns), self.is_stuck(now));
        let (pace, seen) = self.paid(pace, wanted, now, plane);
        let is_near = self.queued.is_some_and(|queued| pace.is_near(queued));
        // Only a queue whose rate changes, or whose senders are idle, is read for this.
        let may_shrink = self.kind == QueueKind::Rate && !stuck && wanted < self.queue_burst && (self.idle_rounds > 0 || !is_near);
        let shrinks = if may_shrink { seen.or_else(|| self.backlog()).filter(|backlog| backlog.bytes == 0) } else { None };
        if is_near && shrinks.is_none() && !stuck {
            return Ok(());
        }
        if let (Direction::Ingress, None, Some(plane)) = (self.end.hook.direction, &self.detour, plane) {
            self.add_detour(plane)?;
        }
        match self.kind {
            QueueKind::Rate => {
                let burst_bytes = match (shrinks, stuck) {
                    (Some(_), _) => wanted,
                    (None, true) => wanted.max(LARGEST),
                    (None, false) => wanted.max(self.queue_burst.min(LARGEST)),
                };
                self.put_queue(&self.rated(pace, burst_bytes as u32))?;
                self.queue_burst = burst_bytes;
                self.overrun.filled(burst_bytes, seen.map_or(0, |backlog| backlog.bytes));
                self.shrunk = match shrinks {
                    Some(backlog) => Some((now, backlog.passed_bytes)),
                    None => self.shrunk.filter(|_| !stuck),
                };
            }
            QueueKind::Departures if self.queued.is_none_or(|queued| queued == QueueRate::UNKNOWN) => self.put_queue(&self.departures())?,
            // It has no rate to change.
            QueueKind::Departures => {}
        }
        self.queued = Some(pace);
        self.short_looks = 0;
        Ok(())
    }

    /// The rate for the queue, so that it passes no more than it was granted in the long run, and what waits in it, if it was read
    /// for this. `burst`: bytes that a change passes.
    fn paid(&mut self, pace: QueueRate, burst: u64, now: Nanos, plane: Option<&Plane>) -> (QueueRate, Option<Backlog>) {
        // The burst of a queue for datagrams is 2 ms, and what it passes early waits for less than `hold`.
        if self.kind != QueueKind::Rate || !pace.strict || !pace.tcp {
            self.overrun = Overrun::default();
            return (pace, None);
        }
        let known = self.queued.filter(|queued| queued.strict && *queued != QueueRate::UNKNOWN);
        let Some(backlog) = self.backlog() else {
            // Not yet there: its hook has let the first packets pass, and would forget that they were too many.
            let ahead = plane.map_or(0, |plane| plane.ahead(self.leaf, now));
            self.overrun = Overrun::after(pace.bytes_during(ahead));
            return (pace, None);
        };
        let granted = Granted { bps: pace.bps, short: pace.short, burst };
        let bps = self.overrun.rate(now, known.map(|queued| queued.bps), backlog.passed_bytes, granted);
        (QueueRate { bps, ..pace }, Some(backlog))
    }

    /// Takes note of how long the next packet waits. A queue that stays short gets the larger burst, until its rate changes. The change
    /// lets a burst pass, but no more than waits.
    pub fn waits(&mut self, wait: Nanos) -> Result<(), GuardError> {
        let holds_back = |pace: &QueueRate| self.kind == QueueKind::Rate && pace.strict && !pace.tcp && self.idle_rounds == 0;
        let Some(pace) = self.queued.filter(holds_back) else { return Ok(()) };
        if self.short_looks >= SHORT_LOOKS {
            return Ok(());
        }
        self.short_looks = if wait <= SHORT_NS { self.short_looks + 1 } else { 0 };
        if self.short_looks < SHORT_LOOKS {
            return Ok(());
        }
        let burst_bytes = pace.bytes_during(SHORT_BURST_NS.min(self.burst_ns)).max(self.queue_burst);
        self.put_queue(&self.rated(pace, burst_bytes as u32)).map_err(GuardError::kernel(&self.shown))
    }

    fn put_queue(&self, queue: &Queue) -> io::Result<()> {
        let end = self.queue_end()?;
        end.network()?.queue(end.index, queue)
    }

    /// The hook decides how much waits; the queue's own limits must only stay out of the way.
    fn departures(&self) -> Queue {
        let limit_packets = room(self.ceiling_bps, self.hold_ns);
        let slack_ns = (self.hold_ns / SLACK_PART).clamp(*SLACK_NS.start(), *SLACK_NS.end()) as u32;
        Queue::Departures { limit_packets, slack_ns }
    }

    fn rated(&self, pace: QueueRate, burst_bytes: u32) -> Queue {
        let limit_bytes = u32::try_from(pace.bytes_during(self.hold_ns).max(LIMIT_LEAST)).unwrap_or(u32::MAX);
        Queue::Rate { bytes_per_second: pace.bytes_per_second(), burst_bytes, limit_bytes }
    }

    /// Whether nothing has left a queue since its burst shrank, though packets wait: the first is larger than the burst.
    fn is_stuck(&mut self, now: Nanos) -> bool {
        let Some((since, passed_bytes)) = self.shrunk else { return false };
        if now < since + STUCK_NS {
            return false;
        }
        let is_stuck = self.backlog().is_some_and(|backlog| backlog.bytes > 0 && backlog.passed_bytes == passed_bytes);
        // Judged once: what leaves later fits in the burst.
        self.shrunk = None;
        is_stuck
    }

    /// Whether the queue had no traffic for `rounds` rounds. Packets in a removed queue would be lost.
    pub fn is_unused(&mut self, idle: bool, rounds: u32) -> bool {
        self.idle_rounds = if idle { self.idle_rounds.saturating_add(1) } else { 0 };
        self.has_queue() && self.idle_rounds >= rounds
    }

    /// Removes the queue, and the interface for a detour. No packet may be on its way there.
    pub fn unqueue(&mut self, plane: &Plane) -> io::Result<()> {
        match self.leave_detour(plane) {
            Some(detour) => detour.remove()?,
            None => self.end.network()?.unqueue(self.end.index)?,
        }
        (self.queued, self.queue_burst, self.shrunk, self.overrun) = (None, 0, None, Overrun::default());
        Ok(())
    }

    /// Takes the limits of another policy. An existing queue gets its new limits when it is paced next.
    pub fn adjust(&mut self, leaf: &GuardLeaf) {
        let limits = (leaf.burst_ns, leaf.hold_ns, leaf.ceiling_bps);
        if (self.burst_ns, self.hold_ns, self.ceiling_bps) != limits {
            (self.burst_ns, self.hold_ns, self.ceiling_bps) = limits;
            self.queued = self.queued.map(|_| QueueRate::UNKNOWN);
        }
    }

    /// Releases handles in a namespace that its file no longer refers to, so that it is not kept alive. The kernel keeps hook and
    /// queue there as long as another holder keeps the namespace.
    pub fn let_go(&mut self, network: &Arc<Network>) {
        self.backstop.take_if(|end| end.is_in(network));
        if self.detour.take_if(|detour| detour.end.is_in(network)).is_some() {
            self.queued = None;
        }
        if self.end.is_in(network) {
            self.end.network = None;
        }
    }

    /// Moves the place. The next check adds hook and queue there; the old place keeps nothing.
    pub fn move_to(&mut self, to: &GuardMove, plane: &Plane) {
        let pace = self.queued;
        self.clear(plane);
        // A queue on egress is put at the new place by the next check. A detour is added when a packet needs it.
        self.queued = pace.filter(|_| self.end.hook.direction == Direction::Egress);
        (self.backstop, self.peer) = (None, None);
        self.end.network = None;
        (self.space, self.interface, self.called) = (to.namespace.clone(), to.interface.clone(), to.interface.clone());
        self.shown = shown_at(self.end.hook.direction, &self.interface, self.space.as_deref());
    }

    /// Checks hook and queue, and restores missing ones.
    pub fn look(&mut self, plane: &Plane, networks: &mut Networks) -> Result<Look, GuardError> {
        self.look_into(plane, networks).map_err(GuardError::kernel(&self.shown))
    }

    fn look_into(&mut self, plane: &Plane, networks: &mut Networks) -> io::Result<Look> {
        let network = networks.at(self.space.as_deref())?;
        let named = if_there(network.index(&self.interface))?;
        let own = self.own(&network, networks)?;
        let whereabouts = whereabouts(self.end.index, own, named);
        match whereabouts {
            Where::Same | Where::Renamed | Where::Imitated(_) => {}
            Where::Away => return Ok(Look { whereabouts, renamed: false, whole: true, unhooked_bytes: 0 }),
            Where::Replaced(index) => self.hook_at(network.clone(), index, plane)?,
            Where::Gone => return Err(io::Error::from_raw_os_error(NO_DEVICE)),
        }
        let interface = network.interface(self.end.index)?;
        let is_new = own == Own::Gone;
        let unhooked_bytes = if is_new { self.in_way(&interface)[0].bytes } else { 0 };
        let renamed = std::mem::replace(&mut self.called, interface.name.clone()) != interface.name;
        if self.peer != interface.peer {
            self.find_backstop(networks)?;
            self.peer = interface.peer;
        }
        self.veth = interface.peer.is_some();
        let hooked = self.restore_hooks(plane)?;
        let queued = self.restore_queue(plane, frame(&interface), matches!(whereabouts, Where::Replaced(_)))?;
        Ok(Look { whereabouts, renamed, whole: hooked && queued, unhooked_bytes })
    }

    /// Where the interface is that had the hook, whatever its name.
    fn own(&mut self, network: &Arc<Network>, networks: &mut Networks) -> io::Result<Own> {
        if !self.end.is_in(network) {
            return Ok(Own::Gone);
        }
        let Some(other) = &self.backstop else { return self.own_by_number() };
        let Some(peer) = if_there(other.network()?.interface(other.index))?.and_then(|end| end.peer) else {
            // It ended with the tenant's end, or is somewhere else.
            (self.backstop, self.peer) = (None, None);
            return self.own_by_number();
        };
        let is_here = match (peer.namespace, networks.namespace(self.space.as_deref())) {
            (None, _) => other.is_in(network),
            (Some(number), Some(namespace)) => other.network()?.number_of(&namespace)? == Some(number),
            (Some(_), None) => false,
        };
        Ok(if is_here { Own::Here(peer.index) } else { Own::Away })
    }

    fn own_by_number(&self) -> io::Result<Own> {
        let interface = if_there(self.end.network()?.interface(self.end.index))?;
        Ok(interface.map_or(Own::Gone, |_| Own::Here(self.end.index)))
    }

    /// Hooks another interface instead, which has neither hook nor queue.
    pub fn hook_at(&mut self, network: Arc<Network>, index: u32, plane: &Plane) -> io::Result<()> {
        if let Some(detour) = self.leave_detour(plane) {
            // It leads back to an interface that is gone.
            let _ = detour.remove();
            self.queued = None;
        }
        (self.queue_burst, self.shrunk, self.overrun) = (0, None, Overrun::default());
        self.peer = None;
        self.end = End::new(network, index, self.end.hook.clone())?;
        self.end.put(plane)
    }

    /// Puts hooks back that are missing. False if any was.
    fn restore_hooks(&mut self, plane: &Plane) -> io::Result<bool> {
        let mut whole = true;
        if let Some(detour) = self.detour() {
            if if_there(self.end.network()?.interface(detour))?.is_none() {
                self.leave_detour(plane);
                self.add_detour(plane)?;
                whole = false;
            }
        }
        for end in self.ends() {
            if !end.is_there(plane.handle())? {
                end.put(plane)?;
                whole = false;
            }
        }
        Ok(whole)
    }

    /// Puts the queue back if it is missing, or sets it for another size of frames. False if it was missing. `moved`: the interface
    /// is another one.
    fn restore_queue(&mut self, plane: &Plane, frame: u64, moved: bool) -> io::Result<bool> {
        let queued = !self.has_queue() || self.end.network()?.root(self.queue_end()?.index)? == Root::Ours(self.kind);
        let grown = frame > std::mem::replace(&mut self.frame, frame);
        if let Some(pace) = self.queued.take_if(|_| !queued || moved || grown) {
            if !queued {
                (self.queue_burst, self.shrunk) = (0, None);
            }
            self.repace(pace, Some(plane))?;
        }
        Ok(queued)
    }

    /// The wait of the next packet in the queue behind the hook. None without a queue.
    pub fn wait_ns(&self) -> Option<Nanos> {
        let QueueRate { bps, .. } = self.queued?;
        Some((u128::from(self.waiting_bytes()?) * 8_000_000_000 / u128::from(bps.max(1))) as Nanos)
    }

    /// Bytes that wait behind the hook. None without a queue.
    pub fn waiting_bytes(&self) -> Option<u64> {
        Some(self.backlog()?.bytes)
    }

    fn backlog(&self) -> Option<Backlog> {
        self.queued?;
        let end = self.queue_end().ok()?;
        end.network().ok()?.backlog(end.index).ok()?
    }

    /// The interface's own counters: for the hook's direction, and for the other one.
    pub fn counted(&self) -> Result<[Count; 2], GuardError> {
        let interface =
            self.end.network().and_then(|network| network.interface(self.end.index)).map_err(GuardError::kernel(&self.shown))?;
        Ok(self.in_way(&interface))
    }

    fn in_way(&self, interface: &Interface) -> [Count; 2] {
        let counters = interface.counters;
        let received = Count { bytes: counters.in_bytes, packets: counters.in_packets };
        let sent = Count { bytes: counters.out_bytes, packets: counters.out_packets };
        match self.end.hook.direction {
            Direction::Ingress => [received, sent],
            Direction::Egress => [sent, received],
        }
    }

    /// Whether the interface counts bytes as the hook does.
    pub fn counts_exactly(&self) -> bool {
        self.veth && self.end.hook.direction == Direction::Egress
    }

    /// Whether the interface's own counters include packets that the hook dropped.
    pub fn counts_dropped(&self) -> bool {
        self.end.hook.direction == Direction::Ingress
    }
}

/// Removes hooks and queues of any guard from the named interfaces, even those of a dead guard. Removes those of policy
/// `remove.id` from all interfaces of all accessible namespaces, even if the interfaces were renamed.
///
/// # Errors
/// An error of the kernel. A missing interface is not an error.
pub fn remove(remove: &GuardRemove) -> Result<GuardRemoved, GuardError> {
    let mut networks = Networks::default();
    let (mut removed, mut unseen) = (Vec::new(), Vec::new());
    for hook in &remove.hooks {
        let Ok(network) = networks.of(hook) else {
            unseen.push(shown(hook));
            continue;
        };
        let Ok(index) = network.index(&hook.interface) else { continue };
        take_away(&network, index, hook, &mut removed).map_err(GuardError::kernel(shown(hook)))?;
        if let Some((network, index)) = hook.backstop.then(|| networks.other_end(&network, index)).and_then(|end| end.ok()?) {
            unhook(&network, index, |attached| is_guards(attached, BACKSTOP)).map_err(GuardError::kernel(shown(hook)))?;
        }
    }
    if let Some(policy) = &remove.id {
        networks.all_named();
        for (file, network) in networks.each() {
            let place = file.as_deref().map_or(String::new(), |file| format!(" in {file}"));
            sweep(&network, policy, &place, &mut removed).map_err(GuardError::kernel(format_args!("the interfaces{place}")))?;
        }
    }
    Ok(GuardRemoved { removed, unseen })
}

fn take_away(network: &Network, index: u32, hook: &GuardHook, removed: &mut Vec<String>) -> io::Result<()> {
    // An interface that disappears meanwhile takes its queue with it.
    if matches!(network.root(index), Ok(Root::Ours(_))) {
        network.unqueue(index)?;
        removed.push(format!("queue at {}", shown(hook)));
    }
    let hooks = unhook(network, index, |attached| is_guards(attached, NAME))?;
    removed.extend((0..hooks).map(|_| format!("hook at {}", shown(hook))));
    unhook(network, index, |attached| is_guards(attached, LEAD))?;
    if let (true, Ok(detour)) = (hook.direction == GuardDirection::Ingress, network.index(&detour_name(index))) {
        network.remove_detour(detour)?;
        removed.push(format!("queue at {}", shown(hook)));
    }
    Ok(())
}

/// Removes the remaining hooks and queues of a policy from a namespace: from renamed interfaces, or those whose other end is
/// unknown.
fn sweep(network: &Network, policy: &str, place: &str, removed: &mut Vec<String>) -> io::Result<()> {
    let (own, backstop, lead, mut detours) = (called(NAME, policy), called(BACKSTOP, policy), called(LEAD, policy), Vec::new());
    for index in network.hooked()? {
        // An interface that disappeared meanwhile took its hooks with it.
        let Ok(interface) = network.interface(index) else { continue };
        let hooks = unhook(network, index, |attached| attached.name == own)?;
        unhook(network, index, |attached| attached.name == lead)?;
        if hooks > 0 && interface.name.starts_with(DETOUR) {
            detours.push(index);
            continue;
        }
        if hooks > 0 && matches!(network.root(index), Ok(Root::Ours(_))) {
            network.unqueue(index)?;
            removed.push(format!("queue at {}{place}", interface.name));
        }
        removed.extend((0..hooks).map(|_| format!("hook at {}{place}", interface.name)));
        let backstops = unhook(network, index, |attached| attached.name == backstop)?;
        removed.extend((0..backstops).map(|_| format!("backstop at {}{place}", interface.name)));
    }
    // No hook leads there any more.
    detours.into_iter().try_for_each(|index| network.remove_detour(index))
}

/// Removes hooks and returns their number.
fn unhook(network: &Network, index: u32, which: impl Fn(&Hook) -> bool) -> io::Result<usize> {
    let filters: Vec<_> = network.filters(index)?.into_iter().filter(|filter| which(&filter.hook)).collect();
    filters.iter().try_for_each(|filter| network.unhook(index, filter))?;
    network.tidy(index)?;
    Ok(filters.len())
}

fn detour_name(index: u32) -> String {
    format!("{DETOUR}{index}")
}

/// The name of a policy's hooks. It identifies them even if the interface has moved.
fn called(name: &str, policy: &str) -> String {
    // The kernel limits the length of a name.
    let policy: String = policy.chars().take(NAME_CHARS).collect();
    format!("{NAME_PREFIX}{name}:{policy}")
}

/// Whether it is a hook of that kind, of any policy.
fn is_guards(hook: &Hook, name: &str) -> bool {
    hook.name
        .strip_prefix(NAME_PREFIX)
        .and_then(|rest| rest.strip_prefix(name))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Traffic that a tenant sends is ingress at the other end.
fn backstop_hook(policy: &str, number: u16) -> Hook {
    Hook { name: called(BACKSTOP, policy), direction: Direction::Ingress, priority: BACKSTOP_PRIORITY, number }
}

/// Largest size that an interface sends in one piece, in bytes with its link header.
fn frame(interface: &Interface) -> u64 {
    u64::from(interface.mtu) + HEADER
}

fn kind(queue: GuardQueue) -> QueueKind {
    match queue {
        GuardQueue::Fq => QueueKind::Departures,
        GuardQueue::Tbf => QueueKind::Rate,
    }
}

fn direction(direction: GuardDirection) -> Direction {
    match direction {
        GuardDirection::Ingress => Direction::Ingress,
        GuardDirection::Egress => Direction::Egress,
    }
}

/// None if there is no such interface.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.raw_os_error() == Some(NO_DEVICE) => Ok(None),
        other => other.map(Some),
    }
}

fn shown(hook: &GuardHook) -> String {
    shown_at(direction(hook.direction), &hook.interface, hook.namespace.as_deref())
}

fn shown_at(direction: Direction, interface: &str, namespace: Option<&str>) -> String {
    let way = match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    };
    let place = namespace.map_or(String::new(), |namespace| format!(" in {namespace}"));
    format!("{way} of {interface}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_room_for_all_that_may_wait_in_the_smallest_frames() {
        let (gbit, ms) = (1_000_000_000, 1_000_000);
        for (ceiling_bps, hold_ns) in [(gbit / 10, 20 * ms), (gbit, 5 * ms), (gbit, 20 * ms), (2 * gbit, 20 * ms), (4 * gbit, 10 * ms)] {
            let waits = 2 * ceiling_bps / 8 * hold_ns / gbit;
            assert!(u64::from(room(ceiling_bps, hold_ns)) * FRAME_LEAST >= waits, "{ceiling_bps} {hold_ns}");
        }
        assert_eq!((room(1, 1), room(100 * gbit, 5 * ms)), (10_000, 1 << 18));
        let much = room(400 * gbit, 20 * ms);
        assert!(u64::from(much) * FRAME >= 2 * 400 * gbit / 8 / 50, "full frames fit at any rate");
        assert_eq!(room(u64::MAX, u64::MAX), u32::MAX);
    }

    #[test]
    fn a_packet_at_the_head_of_a_queue_leaves_soon_at_any_rate() {
        for kbps in [64, 300, 1000, 5000, 30_000, 1_000_000] {
            let pace = QueueRate { bps: kbps * 1000, strict: true, tcp: true, short: true };
            let largest = pace.burst_bytes(FRAME, 10_000_000).min(LARGEST);
            assert!(largest >= 2 * FRAME && largest * 8 / kbps <= 400, "{largest} bytes at {kbps} kbit/s");
        }
        let fast = QueueRate { bps: 30_000_000, strict: true, tcp: true, short: true };
        assert_eq!(fast.burst_bytes(FRAME, 10_000_000), LARGEST, "TCP is segmented no more than needed");
        assert_eq!(QueueRate { tcp: false, ..fast }.burst_bytes(FRAME, 10_000_000), 7500);
    }
}
