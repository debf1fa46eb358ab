//! Where packets are met: the hook of one vif in one direction, with the queue behind it, put there, looked for and removed.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use partywall_bpf::tc::{Backlog, Direction, Hook, Interface, Network, Queue, QueueKind, Root};
use partywall_bpf::{Namespace, NAME_PREFIX};
use partywall_clock::Nanos;
use partywall_wire::{GuardDirection, GuardExcess, GuardHook, GuardLeaf, GuardLink, GuardQueue, GuardRemove, GuardRemoved};

use crate::check::Count;
use crate::error::GuardError;
use crate::plane::{number, Handle, Plane};

/// Of hooks, so that `remove` tells them from a trace's.
const NAME: &str = "guard";
/// After a trace's, which sees what was offered; before anybody's without a number.
const PRIORITY: u16 = 20;
/// Of hooks on the other end of a tenant's veth. Somebody else's guard may be hooked there as well.
const BACKSTOP: &str = "backstop";
const BACKSTOP_PRIORITY: u16 = 21;
/// Of a policy's name, in those of its hooks.
const NAME_CHARS: usize = 60;
const STRICT_BURST_NS: Nanos = 2_000_000;
/// A packet of 64 KiB that the card is to segment, with the headers of all its segments.
pub(crate) const LARGEST: u64 = (64 << 10) + 128 * 66;
/// What TCP has under way by itself (small queues: two packets, and one that is begun), with some room.
const LIMIT_LEAST: u64 = 4 * LARGEST;
/// Link header, with tags.
const HEADER: u64 = 32;
/// A full frame.
const FRAME: u64 = 1514;
/// Full frames that a queue with departure times has room for, for one that may wait by its time: the hook decides what waits,
/// and frames may be smaller. As many as the kernel's default at the least.
const ROOM: u64 = 4;
const ROOM_LEAST: u64 = 10_000;
/// Packets may leave so much later than at their departure time, as a part of what they may wait.
const SLACK_PART: Nanos = 64;
const SLACK_NS: RangeInclusive<Nanos> = 10_000..=500_000;

/// One hook on one interface.
struct End {
    /// None once its namespace was let go.
    network: Option<Arc<Network>>,
    index: u32,
    link_header: bool,
    hook: Hook,
}

impl End {
    fn new(network: Arc<Network>, index: u32, hook: Hook) -> io::Result<Self> {
        let link_header = network.interface(index)?.has_link_header();
        Ok(Self { network: Some(network), index, link_header, hook })
    }

    fn network(&self) -> io::Result<&Arc<Network>> {
        self.network.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn is_in(&self, network: &Arc<Network>) -> bool {
        self.network.as_ref().is_some_and(|own| Arc::ptr_eq(own, network))
    }

    fn put(&self, plane: &Plane) -> io::Result<()> {
        self.network()?.hook(self.index, &self.hook, plane.program(self.link_header))
    }

    fn is_there(&self, plane: Handle) -> io::Result<bool> {
        let filters = self.network()?.filters(self.index)?;
        Ok(filters.iter().any(|filter| filter.hook == self.hook && filter.program == plane.program(self.link_header)))
    }

    /// Takes the hook away; what else is there stays.
    fn take_away(&self) -> io::Result<()> {
        for filter in self.network()?.filters(self.index)?.iter().filter(|filter| filter.hook == self.hook) {
            self.network()?.unhook(self.index, filter)?;
        }
        self.network()?.tidy(self.index)
    }
}

pub(crate) struct Place {
    end: End,
    /// The other end of a veth that its tenant can reach.
    backstop: Option<End>,
    backstop_hook: Option<Hook>,
    /// File of the namespace.
    pub space: Option<String>,
    shown: String,
    pub interface: String,
    pub excess: GuardExcess,
    kind: QueueKind,
    queued: Option<Pace>,
    /// Of the queue that is there. A packet that waits and is larger than what the burst is changed to would never leave, nor
    /// any behind it: below the largest there are it only grows. What comes in larger than the burst the queue segments.
    queue_burst: u64,
    /// The largest that the interface sends in one piece.
    frame: u64,
    veth: bool,
    burst_ns: Nanos,
    hold_ns: Nanos,
    ceiling_bps: u64,
    idle_rounds: u32,
}

/// What a queue lets pass. strict: it is to hold back its senders, else only to be in nobody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub bps: u64,
    pub strict: bool,
    /// Packets that the card is to segment are let through in one piece.
    pub tcp: bool,
}

impl Pace {
    /// Of an earlier guard's queue, of whichever kind.
    const UNKNOWN: Self = Self { bps: 0, strict: true, tcp: true };

    fn bytes_per_second(self) -> u64 {
        (self.bps / 8).max(1000)
    }

    fn bytes_during(self, ns: Nanos) -> u64 {
        (u128::from(self.bytes_per_second()) * u128::from(ns) / 1_000_000_000) as u64
    }

    /// Small changes are not worth a call, and a queue that is changed lets a burst pass.
    fn is_near(self, other: Self) -> bool {
        self.strict == other.strict && self.tcp <= other.tcp && self.bps.abs_diff(other.bps) <= other.bps / 500
    }
}

/// What a look at a place found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Whole,
    Repaired,
    Moved,
    Renamed,
}

/// Networks by the file that stands for their namespace, so that a thousand vifs of one are one socket.
#[derive(Default)]
pub(crate) struct Networks(BTreeMap<Option<String>, (Namespace, Arc<Network>)>);

impl Networks {
    pub fn of(&mut self, hook: &GuardHook) -> Result<Arc<Network>, GuardError> {
        self.at(hook.namespace.as_deref()).map_err(GuardError::kernel(shown(hook)))
    }

    /// All namespaces looked into so far, with the files that stand for them.
    pub fn namespaces(&self) -> (Vec<Option<String>>, Vec<Namespace>) {
        self.0.iter().map(|(file, (namespace, _))| (file.clone(), namespace.clone())).unzip()
    }

    /// Forgets the namespaces whose file is gone or stands for another now; these files, and what they stood for.
    pub fn outdated(&mut self) -> Vec<(Option<String>, Arc<Network>)> {
        let is_outdated = |file: &Option<String>, namespace: &Namespace| {
            file.is_some() && open(file.as_deref()).and_then(|now| now.number()).ok() != namespace.number().ok()
        };
        let files = self.0.iter().filter(|(file, (namespace, _))| is_outdated(file, namespace)).map(|(file, _)| file.clone());
        let files: Vec<_> = files.collect();
        files.into_iter().filter_map(|file| self.0.remove(&file).map(|(_, network)| (file, network))).collect()
    }

    /// The namespace that a file stands for, if there is one.
    pub fn namespace(&mut self, file: Option<&str>) -> Option<Namespace> {
        self.at(file).ok()?;
        self.0.get(&file.map(str::to_owned)).map(|(namespace, _)| namespace.clone())
    }

    /// Looks also into this process's own and into all that have a name, as far as they let it.
    fn all_named(&mut self) {
        for file in std::iter::once(None).chain(named().into_iter().map(Some)) {
            // A file without a namespace is what was left of one.
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

    /// The other end of a veth: in this process's namespace, in one that is known already, or in one with a name.
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

/// What holds packets back, in every namespace alike: what is asked for, or `fq` if the kernel has it.
pub(crate) fn queue(asked: Option<GuardQueue>) -> Result<GuardQueue, GuardError> {
    let tried = Namespace::current().and_then(|own| Network::of(&own)?.has_departures());
    match (asked, tried.map_err(GuardError::kernel("trying whether there is fq"))?) {
        (Some(GuardQueue::Fq), false) => {
            Err(GuardError::lacking("this kernel has no fq (its module is sch_fq); leave `queue` out to have tbf"))
        }
        (Some(asked), _) => Ok(asked),
        (None, true) => Ok(GuardQueue::Fq),
        (None, false) => Ok(GuardQueue::Tbf),
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

    pub fn is_in(&self, network: &Arc<Network>) -> bool {
        Arc::ptr_eq(&self.network, network)
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
    /// Finds the interface, and its other end if that is asked for; changes nothing. backstop: of which leaf it would be.
    /// policy: whose hook it is. queue: what is to hold packets back.
    pub fn find(
        networks: &mut Networks,
        policy: &str,
        queue: GuardQueue,
        hook: &GuardHook,
        leaf: &GuardLeaf,
        backstop: usize,
    ) -> Result<Self, GuardError> {
        let network = networks.of(hook)?;
        let found = || GuardError::kernel(shown(hook));
        let index = network.index(&hook.interface).map_err(found())?;
        let root = network.root(index).map_err(found())?;
        // A queue is for the way out, and never in somebody else's place.
        let holdable = hook.hold && hook.direction == GuardDirection::Egress && !matches!(root, Root::Foreign(_));
        let direction = direction(hook.direction);
        let hooked = Hook { name: called(NAME, policy), direction, priority: PRIORITY, number: number(hook.leaf) };
        // An earlier guard's: it goes on without a gap.
        let taken_over = holdable && matches!(root, Root::Ours(_));
        let interface = network.interface(index).map_err(found())?;
        let mut place = Self {
            end: End::new(network, index, hooked).map_err(found())?,
            backstop: None,
            backstop_hook: hook.backstop.then(|| backstop_hook(policy, number(backstop))),
            space: hook.namespace.clone(),
            shown: shown(hook),
            interface: hook.interface.clone(),
            excess: if holdable { GuardExcess::Held } else { GuardExcess::Dropped },
            kind: kind(queue),
            queued: taken_over.then_some(Pace::UNKNOWN),
            queue_burst: if taken_over { LARGEST } else { 0 },
            frame: frame(&interface),
            veth: interface.peer.is_some(),
            burst_ns: leaf.burst_ns,
            hold_ns: leaf.hold_ns,
            ceiling_bps: leaf.ceiling_bps,
            idle_rounds: 0,
        };
        place.find_backstop(networks).map_err(found())?;
        Ok(place)
    }

    fn find_backstop(&mut self, networks: &mut Networks) -> io::Result<()> {
        let Some(hook) = self.backstop_hook.clone() else { return Ok(()) };
        let other = networks.other_end(self.end.network()?, self.end.index)?;
        self.backstop = other.map(|(network, index)| End::new(network, index, hook)).transpose()?;
        Ok(())
    }

    /// Puts the hooks there; replaces those of an earlier guard without a gap.
    pub fn put(&self, plane: &Plane) -> Result<(), GuardError> {
        let mut ends = self.backstop.iter().chain([&self.end]);
        ends.try_for_each(|end| end.put(plane)).map_err(GuardError::kernel(&self.shown))
    }

    /// Undoes [`Place::put`].
    pub fn take_away(&self) {
        let ends = self.backstop.iter().chain([&self.end]);
        for end in ends {
            // What can't be taken away is named by what failed before.
            let _ = end.take_away();
        }
    }

    /// Whether a guard's hook is at this place, whoever made it.
    pub fn is_taken(&self) -> Result<bool, GuardError> {
        let Hook { direction, priority, .. } = &self.end.hook;
        let filters = self.end.network().and_then(|network| network.filters(self.end.index)).map_err(GuardError::kernel(&self.shown))?;
        Ok(filters.iter().any(|f| is_guards(&f.hook, NAME) && f.hook.direction == *direction && f.hook.priority == *priority))
    }

    /// Whether the hook that is there is of that plane.
    pub fn is_hooked_by(&self, plane: Handle) -> io::Result<bool> {
        self.end.is_there(plane)
    }

    /// Whether there was to be a backstop and there is none.
    pub fn lacks_backstop(&self) -> bool {
        self.backstop_hook.is_some() && self.backstop.is_none()
    }

    pub fn has_backstop(&self) -> bool {
        self.backstop.is_some()
    }

    /// Whether something that happened to interface number `index` of its namespace may have happened to this place.
    pub fn may_be(&self, index: u32, name: Option<&str>) -> bool {
        match name {
            // A new interface, or one that was renamed.
            Some(name) => index != self.end.index && name == self.interface,
            None => index == self.end.index,
        }
    }

    /// Whether a queue of ours stands behind the hook.
    pub fn has_queue(&self) -> bool {
        self.queued.is_some()
    }

    /// Puts a queue there, or gives the one that is there another rate.
    pub fn pace(&mut self, pace: Pace) -> Result<(), GuardError> {
        self.repace(pace).map_err(GuardError::kernel(&self.shown))
    }

    fn repace(&mut self, pace: Pace) -> io::Result<()> {
        if self.excess != GuardExcess::Held || self.queued.is_some_and(|queued| pace.is_near(queued)) {
            return Ok(());
        }
        match self.kind {
            QueueKind::Rate => {
                let burst_bytes = self.burst_bytes(pace);
                self.put_queue(&self.rated(pace, burst_bytes))?;
                self.queue_burst = burst_bytes.into();
            }
            QueueKind::Departures if self.queued.is_none_or(|queued| queued == Pace::UNKNOWN) => self.put_queue(&self.departures())?,
            // It has no rate that could change.
            QueueKind::Departures => {}
        }
        self.queued = Some(pace);
        Ok(())
    }

    fn put_queue(&self, queue: &Queue) -> io::Result<()> {
        self.end.network()?.queue(self.end.index, queue)
    }

    /// The hook decides how much waits; what limits the queue is only to be in nobody's way.
    fn departures(&self) -> Queue {
        let frames = u128::from(self.ceiling_bps) * u128::from(self.hold_ns) / 8_000_000_000 / u128::from(FRAME);
        let limit_packets = u32::try_from(frames * u128::from(ROOM)).unwrap_or(u32::MAX).max(ROOM_LEAST as u32);
        let slack_ns = (self.hold_ns / SLACK_PART).clamp(*SLACK_NS.start(), *SLACK_NS.end()) as u32;
        Queue::Departures { limit_packets, slack_ns }
    }

    fn rated(&self, pace: Pace, burst_bytes: u32) -> Queue {
        let limit_bytes = u32::try_from(pace.bytes_during(self.hold_ns).max(LIMIT_LEAST)).unwrap_or(u32::MAX);
        Queue::Rate { bytes_per_second: pace.bytes_per_second(), burst_bytes, limit_bytes }
    }

    /// The burst of a queue that only is in nobody's way is the hook's. One that holds senders back has little: what waits in it
    /// bridges the moments in which they have no CPU, and each change of rate lets a burst pass.
    fn burst_bytes(&self, pace: Pace) -> u32 {
        let burst_ns = if pace.strict { self.burst_ns.min(STRICT_BURST_NS) } else { self.burst_ns };
        let least = if pace.tcp { LARGEST } else { self.frame.max(self.queue_burst.min(LARGEST)) };
        pace.bytes_during(burst_ns).clamp(least, 1 << 31) as u32
    }

    /// Takes the queue away if nothing came for so many rounds: what it holds would go with it.
    pub fn unqueue_if_idle(&mut self, idle: bool, rounds: u32) {
        self.idle_rounds = if idle { self.idle_rounds.saturating_add(1) } else { 0 };
        if self.has_queue() && self.idle_rounds >= rounds && self.unqueue().is_ok() {
            (self.queued, self.queue_burst) = (None, 0);
        }
    }

    fn unqueue(&self) -> io::Result<()> {
        self.end.network()?.unqueue(self.end.index)
    }

    /// Lets go of what is in a namespace that its file no longer stands for, so that it is not kept alive: the kernel keeps hook
    /// and queue there as long as somebody else does.
    pub fn let_go(&mut self, network: &Arc<Network>) {
        self.backstop.take_if(|end| end.is_in(network));
        if self.end.is_in(network) {
            self.end.network = None;
        }
    }

    /// From the next look on it is elsewhere; nothing is left where it was.
    pub fn move_to(&mut self, hook: &GuardHook) {
        self.take_away();
        if self.has_queue() {
            // Its interface may be gone, or out of reach.
            let _ = self.unqueue();
        }
        self.backstop = None;
        self.end.network = None;
        (self.space, self.interface, self.shown) = (hook.namespace.clone(), hook.interface.clone(), shown(hook));
    }

    /// Looks whether all is there, and puts back what is not.
    pub fn look(&mut self, plane: &Plane, networks: &mut Networks) -> Result<Look, GuardError> {
        self.look_into(plane, networks).map_err(GuardError::kernel(&self.shown))
    }

    fn look_into(&mut self, plane: &Plane, networks: &mut Networks) -> io::Result<Look> {
        let network = networks.at(self.space.as_deref())?;
        let anew = !self.end.is_in(&network);
        let (index, renamed) = match network.index(&self.interface) {
            Ok(index) => (index, false),
            Err(error) if anew => return Err(error),
            // Its hooks stay with an interface that is given another name.
            Err(error) => {
                self.interface = network.interface(self.end.index).map_err(|_| error)?.name;
                (self.end.index, true)
            }
        };
        // Gone and made again: counters began anew, and nothing of ours is there.
        let moved = anew || index != self.end.index;
        if moved {
            self.end = End::new(network.clone(), index, self.end.hook.clone())?;
            self.end.put(plane)?;
            self.find_backstop(networks)?;
        }
        let mut whole = true;
        for end in self.backstop.iter().chain([&self.end]) {
            if !end.is_there(plane.handle())? {
                end.put(plane)?;
                whole = false;
            }
        }
        let queued = !self.has_queue() || network.root(index)? == Root::Ours(self.kind);
        let interface = network.interface(index)?;
        self.veth = interface.peer.is_some();
        let frame = frame(&interface);
        let grown = frame > std::mem::replace(&mut self.frame, frame);
        if let Some(pace) = self.queued.take_if(|_| !queued || moved || grown) {
            if !queued || moved {
                self.queue_burst = 0;
            }
            self.repace(pace)?;
        }
        Ok(match (moved, renamed, whole && queued) {
            (true, _, _) => Look::Moved,
            (_, true, true) => Look::Renamed,
            (false, false, true) => Look::Whole,
            (false, _, false) => Look::Repaired,
        })
    }

    /// How long what comes now will wait in the queue behind the hook; none without one.
    pub fn wait_ns(&self) -> Option<Nanos> {
        let Pace { bps, .. } = self.queued?;
        Some((u128::from(self.waiting_bytes()?) * 8_000_000_000 / u128::from(bps.max(1))) as Nanos)
    }

    /// What waits behind the hook; none without a queue.
    pub fn waiting_bytes(&self) -> Option<u64> {
        self.queued?;
        Some(self.end.network().ok()?.backlog(self.end.index).ok()??.bytes)
    }

    /// What the interface itself counted on the way of the hook.
    pub fn counted(&self) -> Result<Count, GuardError> {
        let counters = self.end.network().and_then(|network| network.counters(self.end.index)).map_err(GuardError::kernel(&self.shown))?;
        Ok(match self.end.hook.direction {
            Direction::Ingress => Count { bytes: counters.in_bytes, packets: counters.in_packets },
            Direction::Egress => Count { bytes: counters.out_bytes, packets: counters.out_packets },
        })
    }

    /// Whether the interface counts bytes as the hook does.
    pub fn counts_exactly(&self) -> bool {
        self.veth && self.end.hook.direction == Direction::Egress
    }

    /// Whether the interface's own counter also holds what the hook dropped.
    pub fn counts_dropped(&self) -> bool {
        self.end.hook.direction == Direction::Ingress
    }
}

/// Removes hooks and queues of guards, this one's or a dead one's, from the interfaces named; those of policy `remove.id` from
/// all interfaces of the namespaces that can be looked into, whatever they are called now.
///
/// # Errors
/// The kernel refuses. An interface that is gone has nothing to remove.
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
        if let Some((network, index)) = hook.backstop.then(|| networks.other_end(&network, index)).and_then(|found| found.ok()?) {
            unhook(&network, index, |found| is_guards(found, BACKSTOP)).map_err(GuardError::kernel(shown(hook)))?;
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
    // One that goes meanwhile takes its queue along.
    if matches!(network.root(index), Ok(Root::Ours(_))) {
        network.unqueue(index)?;
        removed.push(format!("queue at {}", shown(hook)));
    }
    let hooks = unhook(network, index, |found| is_guards(found, NAME))?;
    removed.extend((0..hooks).map(|_| format!("hook at {}", shown(hook))));
    Ok(())
}

/// Takes all of a policy's away that is left in a namespace: from interfaces with another name than they had, or whose other
/// end can't be found.
fn sweep(network: &Network, policy: &str, place: &str, removed: &mut Vec<String>) -> io::Result<()> {
    let (own, backstop) = (called(NAME, policy), called(BACKSTOP, policy));
    for index in network.hooked()? {
        // One that went meanwhile took everything along.
        let Ok(interface) = network.interface(index) else { continue };
        let hooks = unhook(network, index, |found| found.name == own)?;
        if hooks > 0 && matches!(network.root(index), Ok(Root::Ours(_))) {
            network.unqueue(index)?;
            removed.push(format!("queue at {}{place}", interface.name));
        }
        removed.extend((0..hooks).map(|_| format!("hook at {}{place}", interface.name)));
        let backstops = unhook(network, index, |found| found.name == backstop)?;
        removed.extend((0..backstops).map(|_| format!("backstop at {}{place}", interface.name)));
    }
    Ok(())
}

/// Takes hooks away; how many there were.
fn unhook(network: &Network, index: u32, which: impl Fn(&Hook) -> bool) -> io::Result<usize> {
    let filters: Vec<_> = network.filters(index)?.into_iter().filter(|filter| which(&filter.hook)).collect();
    filters.iter().try_for_each(|filter| network.unhook(index, filter))?;
    network.tidy(index)?;
    Ok(filters.len())
}

/// The name of a policy's hooks: told from those of others wherever its interface has gone.
fn called(name: &str, policy: &str) -> String {
    // What the kernel keeps of a name is bounded.
    let policy: String = policy.chars().take(NAME_CHARS).collect();
    format!("{NAME_PREFIX}{name}:{policy}")
}

/// Whether it is a hook of that kind, of whichever policy.
fn is_guards(hook: &Hook, name: &str) -> bool {
    hook.name
        .strip_prefix(NAME_PREFIX)
        .and_then(|rest| rest.strip_prefix(name))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// What a tenant sends comes in at the other end.
fn backstop_hook(policy: &str, number: u16) -> Hook {
    Hook { name: called(BACKSTOP, policy), direction: Direction::Ingress, priority: BACKSTOP_PRIORITY, number }
}

/// The largest that an interface sends in one piece, in bytes with its link header.
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
