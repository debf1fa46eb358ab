//! Programs hooked to an interface at tc, on ingress or egress.
//!
//! Hooks are filters of the `clsact` qdisc, not BPF links. Every kernel since 4.5 has them. Any privileged process can find and
//! remove one. They outlive this process, which a guarantee requires. Each carries a number (`classid`) that the program reads as
//! `skb->tc_classid`. So one program serves many interfaces in many namespaces, where interface numbers alone are ambiguous.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::message::{attribute, attributes, text, u16_at, u32_at, u64_at, Message, Socket, ACK, CREATE, DUMP, ECHO, EXCLUSIVE, REPLACE};
use crate::{Namespace, NAME_PREFIX};

const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const GET_NAMESPACE_ID: u16 = 90;
const NEW_ACTION: u16 = 48;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const STATS_BASIC: u16 = 1;
const STATS_QUEUE: u16 = 3;
const BPF_ACTION: u16 = 1;
const BPF_CLASSID: u16 = 3;
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const BPF_ID: u16 = 11;
/// The program's return value is the verdict.
const DIRECT_ACTION: u32 = 1;

/// Of a list of actions, the first; of an action, its kind, options and parameters.
const FIRST_ACTION: u16 = 1;
const ACTION_TABLE: u16 = 1;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
const TCAMSG: usize = 4;

const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// `ETH_P_ALL`, in network order.
const EVERY_PROTOCOL: u32 = (3u16).to_be() as u32;
/// Parent of an interface's egress queue.
const ROOT: u32 = 0xffff_ffff;
/// Handles of Partywall's queues, by kind: the letters PW and PX. The kernel replaces a queue that has another handle. It does not
/// change the kind of a queue with the same handle.
const TBF_HANDLE: u32 = 0x5057_0000;
const FQ_HANDLE: u32 = 0x5058_0000;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const FQ_LIMIT: u16 = 1;
const FQ_FLOW_LIMIT: u16 = 2;
const FQ_PACING: u16 = 5;
const FQ_BUCKETS: u16 = 8;
const FQ_TIMER_SLACK: u16 = 13;
const FQ_HORIZON: u16 = 14;
const FQ_HORIZON_DROP: u16 = 15;
/// Above any departure time that is written, in microseconds.
const FQ_HORIZON_US: u32 = 60_000_000;
const TCMSG: usize = 20;
const IFINFOMSG: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_STATS64: u16 = 23;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_LINK_NAMESPACE: u16 = 37;
const NAMESPACE_ID: u16 = 1;
const NAMESPACE_FD: u16 = 3;
const RTGENMSG: usize = 4;
const ETHERNET: u16 = 1;
/// `IFF_UP`.
const UP: u32 = 1;
const LOOPBACK: u16 = 772;

/// The direction of packets, seen from the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Packets that the interface receives.
    Ingress,
    /// Packets that the interface sends.
    Egress,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    fn parent(self) -> u32 {
        match self {
            Self::Ingress => 0xffff_fff2,
            Self::Egress => 0xffff_fff3,
        }
    }
}

/// Description of a hook. `name` must begin with [`NAME_PREFIX`]. (`direction`, `priority`) is its place on the interface; an existing
/// filter there is replaced without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Shown by `tc filter show`, and used to find the hook again.
    pub name: String,
    /// Direction of the packets.
    pub direction: Direction,
    /// Lower priorities run first.
    pub priority: u16,
    /// Read by the program as `skb->tc_classid`.
    pub number: u16,
}

/// An egress queue. A sender on this host notices when it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Sends packets at a rate: the token bucket filter `tbf`.
    Rate {
        /// Bytes per second, including Ethernet headers.
        bytes_per_second: u64,
        /// Maximum burst in bytes.
        burst_bytes: u32,
        /// Maximum bytes in the queue.
        limit_bytes: u32,
    },
    /// Sends each packet at its departure time (`skb->tstamp`): fair queueing, `fq`.
    Departures {
        /// Maximum packets in the queue, of one flow or of many.
        limit_packets: u32,
        /// Maximum extra delay of packets, so that one timer serves all packets due by then.
        slack_ns: u32,
    },
}

/// The kinds of [`Queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// `tbf`.
    Rate,
    /// `fq`.
    Departures,
}

impl QueueKind {
    fn handle(self) -> u32 {
        match self {
            Self::Rate => TBF_HANDLE,
            Self::Departures => FQ_HANDLE,
        }
    }
}

/// The root queue of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The kernel's default.
    Default,
    /// A queue of Partywall.
    Ours(QueueKind),
    /// Another program's queue, by its kind.
    Foreign(String),
}

/// Content and counters of an interface's egress queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Waiting bytes.
    pub bytes: u64,
    /// Waiting packets.
    pub packets: u64,
    /// Bytes sent since the queue was created.
    pub passed_bytes: u64,
    /// Packets dropped since the queue was created.
    pub dropped_packets: u64,
}

/// A filter of Partywall on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its description.
    pub hook: Hook,
    /// The kernel's ID of the program, by which program and maps can be opened.
    pub program: u32,
    handle: u32,
}

/// Counters of an interface, seen from its own namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub in_packets: u64,
    /// Packets sent.
    pub out_packets: u64,
    /// Bytes received.
    pub in_bytes: u64,
    /// Bytes sent.
    pub out_bytes: u64,
    /// Packets dropped on ingress.
    pub in_dropped: u64,
    /// Packets dropped on egress.
    pub out_dropped: u64,
}

/// An interface, as reported by a dump of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name in its namespace.
    pub name: String,
    /// The link type, for instance `ARPHRD_ETHER` (1). It determines how packets begin.
    pub link: u16,
    /// The largest packet in bytes, without its link header.
    pub mtu: u32,
    /// Its counters.
    pub counters: Counters,
    /// The other end, if it is a veth.
    pub peer: Option<Peer>,
}

impl Interface {
    /// Whether its packets begin with an Ethernet header. Packets of a bare-IP tunnel begin with the IP header.
    #[must_use]
    pub fn has_link_header(&self) -> bool {
        matches!(self.link, ETHERNET | LOOPBACK)
    }
}

/// The other end of a veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number in its namespace.
    pub index: u32,
    /// The namespace, as numbered by the first end's namespace ([`Network::number_of`]). None if it is the same.
    pub namespace: Option<u32>,
}

/// The interfaces of one namespace.
#[derive(Debug)]
pub struct Network(Socket);

impl Network {
    /// The interfaces of `namespace`.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn of(namespace: &Namespace) -> io::Result<Self> {
        Ok(Self(namespace.inside(Socket::open)?))
    }

    /// The number of the interface called `name`.
    ///
    /// # Errors
    /// `ENODEV` if there is none.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(self.0.fd(), name)?)
    }

    /// All interfaces, with their counters.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn interfaces(&self) -> io::Result<Vec<Interface>> {
        let bodies = self.0.ask(Message::new(GET_LINK, DUMP, &[0; IFINFOMSG]))?;
        Ok(bodies.iter().map(|body| interface(body)).collect())
    }

    /// The counters of interface `index`.
    ///
    /// # Errors
    /// `ENODEV` if it is gone.
    pub fn counters(&self, index: u32) -> io::Result<Counters> {
        Ok(self.interface(index)?.counters)
    }

    /// Interface `index`.
    ///
    /// # Errors
    /// `ENODEV` if it is gone.
    pub fn interface(&self, index: u32) -> io::Result<Interface> {
        let mut body = [0; IFINFOMSG];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let bodies = self.0.ask(Message::new(GET_LINK, ACK, &body))?;
        bodies.first().map(|body| interface(body)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The number by which this namespace refers to another. None if it has no such number.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn number_of(&self, other: &Namespace) -> io::Result<Option<u32>> {
        let message = Message::new(GET_NAMESPACE_ID, ACK, &[0; RTGENMSG]).number(NAMESPACE_FD, other.fd().as_raw_fd() as u32);
        let bodies = self.0.ask(message)?;
        let all = bodies.first().map(|body| attributes(body.get(RTGENMSG..).unwrap_or_default())).unwrap_or_default();
        Ok(attribute(&all, NAMESPACE_ID).map(|value| u32_at(value, 0)).filter(|&number| number != u32::MAX))
    }

    /// Hooks `program`. A filter already at its place is replaced without a gap.
    ///
    /// # Errors
    /// The kernel's error: `ENODEV`, `EPERM`, `ENOENT` without `CONFIG_NET_CLS_BPF`.
    ///
    /// # Panics
    /// If the name lacks the prefix, because the filter could never be found again.
    pub fn hook(&self, index: u32, hook: &Hook, program: BorrowedFd) -> io::Result<()> {
        self.put_filter(index, hook, program, |options| options.number(BPF_FLAGS, DIRECT_ACTION))
    }

    /// Hooks `program`, and sends each packet for which it returns -1 to the egress of interface `to`. Other packets go on.
    ///
    /// # Errors
    /// As [`Network::hook`]; `ENOENT` also without `CONFIG_NET_ACT_MIRRED`.
    ///
    /// # Panics
    /// If the name lacks the prefix, because the filter could never be found again.
    pub fn lead(&self, index: u32, hook: &Hook, program: BorrowedFd, to: u32) -> io::Result<()> {
        self.put_filter(index, hook, program, |options| {
            options.nested(BPF_ACTION, |list| {
                list.nested(FIRST_ACTION, |action| {
                    let action = action.text(ACTION_KIND, "mirred");
                    action.nested(ACTION_OPTIONS, |about| about.attribute(MIRRED_PARAMETERS, &redirection(to)))
                })
            })
        })
    }

    fn put_filter(&self, index: u32, hook: &Hook, program: BorrowedFd, more: impl FnOnce(Message) -> Message) -> io::Result<()> {
        assert!(hook.name.starts_with(NAME_PREFIX), "{:?} does not begin with {NAME_PREFIX:?}", hook.name);
        self.ready(index)?;
        let place = tcmsg(index, 1, hook.direction.parent(), information(hook.priority));
        let message = Message::new(NEW_FILTER, ACK | CREATE | REPLACE, &place).text(TCA_KIND, "bpf").nested(TCA_OPTIONS, |options| {
            let options = options.number(BPF_CLASSID, u32::from(hook.number)).number(BPF_FD, program.as_raw_fd() as u32);
            more(options.text(BPF_NAME, &hook.name))
        });
        self.0.ask(message).map(drop)
    }

    /// Partywall's filters on an interface, in both directions.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn filters(&self, index: u32) -> io::Result<Vec<Filter>> {
        let filters = self.dump(index)?;
        Ok(filters.into_iter().filter(|filter| filter.hook.name.starts_with(NAME_PREFIX)).collect())
    }

    /// Removes a filter. A filter that is already gone is not an error.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unhook(&self, index: u32, filter: &Filter) -> io::Result<()> {
        let place = tcmsg(index, filter.handle, filter.hook.direction.parent(), information(filter.hook.priority));
        gone_is_fine(self.0.ask(Message::new(DELETE_FILTER, ACK, &place).text(TCA_KIND, "bpf")))
    }

    /// Removes the `clsact` qdisc if it has no filters left. Its creator is unknown, but an empty one has no effect.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn tidy(&self, index: u32) -> io::Result<()> {
        if !self.dump(index)?.is_empty() {
            return Ok(());
        }
        let place = tcmsg(index, CLSACT_HANDLE, CLSACT, 0);
        gone_is_fine(self.0.ask(Message::new(DELETE_QDISC, ACK, &place).text(TCA_KIND, "clsact")))
    }

    /// Adds an egress queue, or changes Partywall's existing one and keeps its packets. A queue of another kind is replaced.
    ///
    /// # Errors
    /// The kernel's error: `ENOENT` without `CONFIG_NET_SCH_TBF` or `CONFIG_NET_SCH_FQ`.
    pub fn queue(&self, index: u32, queue: &Queue) -> io::Result<()> {
        self.0.ask(put_queue(index, queue, |options| options)).map(drop)
    }

    /// Adds an interface that gives packets back to where they came from, after its egress queue (`ifb`). One of that name is kept.
    ///
    /// # Errors
    /// The kernel's error: `EOPNOTSUPP` without `CONFIG_IFB`.
    pub fn add_detour(&self, name: &str) -> io::Result<u32> {
        match self.0.ask(new_ifb(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.index(name),
        }
    }

    /// Whether the kernel has `ifb` and `mirred`. It requests invalid ones, so nothing changes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has_detours(&self) -> io::Result<bool> {
        use rustix::io::Errno;
        let without_options = Message::new(NEW_ACTION, ACK | CREATE | EXCLUSIVE, &[0; TCAMSG])
            .nested(ACTION_TABLE, |list| list.nested(FIRST_ACTION, |action| action.text(ACTION_KIND, "mirred")));
        for request in [new_ifb("/"), without_options] {
            match self.0.ask(request).as_ref().map_err(Errno::from_io_error) {
                Ok(_) | Err(Some(Errno::INVAL)) => {}
                Err(Some(Errno::OPNOTSUPP | Errno::NOENT)) => return Ok(false),
                Err(error) => return Err(error.unwrap_or(Errno::IO).into()),
            }
        }
        Ok(true)
    }

    /// Removes an interface of [`Network::add_detour`]. One that is already gone is not an error.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove_detour(&self, index: u32) -> io::Result<()> {
        let mut body = [0; IFINFOMSG];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        gone_is_fine(self.0.ask(Message::new(DELETE_LINK, ACK, &body)))
    }

    /// Whether the kernel has `fq`. It requests an invalid one without buckets, so nothing changes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has_departures(&self) -> io::Result<bool> {
        let queue = Queue::Departures { limit_packets: 1, slack_ns: 1 };
        self.knows(put_queue(self.index("lo")?, &queue, |options| options.number(FQ_BUCKETS, 0)))
    }

    /// Whether the kernel has `tbf`. It requests one without its parameters, so nothing changes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has_rates(&self) -> io::Result<bool> {
        let place = tcmsg(self.index("lo")?, TBF_HANDLE, ROOT, 0);
        let request = Message::new(NEW_QDISC, ACK | CREATE | REPLACE, &place).text(TCA_KIND, "tbf");
        self.knows(request.nested(TCA_OPTIONS, |empty| empty))
    }

    /// Whether the kernel has the kind of queue that is requested in a form that it must refuse.
    fn knows(&self, request: Message) -> io::Result<bool> {
        use rustix::io::Errno;
        match self.0.ask(request).as_ref().map_err(Errno::from_io_error) {
            Ok(_) | Err(Some(Errno::INVAL | Errno::RANGE)) => Ok(true),
            Err(Some(Errno::NOENT)) => Ok(false),
            Err(error) => Err(error.unwrap_or(Errno::IO).into()),
        }
    }

    /// The interfaces with a qdisc for hooks, of any program.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn hooked(&self) -> io::Result<Vec<u32>> {
        let bodies = self.0.ask(Message::new(GET_QDISC, DUMP, &[0; TCMSG]))?;
        Ok(bodies.iter().filter(|body| u32_at(body, 12) == CLSACT).map(|body| u32_at(body, 4)).collect())
    }

    /// The current root queue of an interface.
    ///
    /// # Errors
    /// The kernel's error: `ENODEV` if the interface is gone.
    pub fn root(&self, index: u32) -> io::Result<Root> {
        Ok(self.root_body(index)?.map_or(Root::Default, |body| match u32_at(&body, 8) {
            0 => Root::Default,
            TBF_HANDLE => Root::Ours(QueueKind::Rate),
            FQ_HANDLE => Root::Ours(QueueKind::Departures),
            _ => Root::Foreign(attribute(&attributes(body.get(TCMSG..).unwrap_or_default()), TCA_KIND).map(text).unwrap_or_default()),
        }))
    }

    /// Requests a single queue, because a dump would include all queues of the namespace.
    fn root_body(&self, index: u32) -> io::Result<Option<Vec<u8>>> {
        match self.0.ask(Message::new(GET_QDISC, ACK | ECHO, &tcmsg(index, 0, ROOT, 0))) {
            Ok(bodies) => Ok(bodies.into_iter().next()),
            // The kernel has no entry for `noqueue`.
            Err(error) if [Some(2), Some(22)].contains(&error.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The backlog of an interface's queue. None if it has no queue.
    ///
    /// # Errors
    /// The kernel's error: `ENODEV` if the interface is gone.
    pub fn backlog(&self, index: u32) -> io::Result<Option<Backlog>> {
        Ok(self.root_body(index)?.and_then(|body| backlog(&body)))
    }

    /// Removes Partywall's queue. Its waiting packets are lost.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unqueue(&self, index: u32) -> io::Result<()> {
        match self.root(index) {
            Ok(Root::Ours(kind)) => gone_is_fine(self.0.ask(Message::new(DELETE_QDISC, ACK, &tcmsg(index, kind.handle(), ROOT, 0)))),
            Ok(_) => Ok(()),
            Err(error) => gone_is_fine(Err::<(), _>(error)),
        }
    }

    /// Adds the qdisc that filters require.
    fn ready(&self, index: u32) -> io::Result<()> {
        let place = tcmsg(index, CLSACT_HANDLE, CLSACT, 0);
        match self.0.ask(Message::new(NEW_QDISC, ACK | CREATE | EXCLUSIVE, &place).text(TCA_KIND, "clsact")) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    fn dump(&self, index: u32) -> io::Result<Vec<Filter>> {
        let mut filters = Vec::new();
        for direction in Direction::ALL {
            let place = tcmsg(index, 0, direction.parent(), 0);
            // Without the qdisc there is nothing to dump, and some kernels report an error.
            match self.0.ask(Message::new(GET_FILTER, DUMP, &place)) {
                Ok(bodies) => filters.extend(bodies.iter().filter_map(|body| filter(body, index, direction))),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filters)
    }
}

/// `gnet_stats_basic` begins with bytes. `gnet_stats_queue` holds waiting packets and bytes, and drops.
fn backlog(body: &[u8]) -> Option<Backlog> {
    let outer = attributes(body.get(TCMSG..)?);
    let stats = attributes(attribute(&outer, TCA_STATS2)?);
    let queue = attribute(&stats, STATS_QUEUE)?;
    let basic = attribute(&stats, STATS_BASIC).unwrap_or_default();
    let number = |at| u64::from(u32_at(queue, at));
    Some(Backlog { packets: number(0), bytes: number(4), dropped_packets: number(8), passed_bytes: u64_at(basic, 0) })
}

fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOENT, Errno::INVAL, Errno::NODEV].contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn gone_is_fine<T>(outcome: io::Result<T>) -> io::Result<()> {
    match outcome {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

fn tcmsg(index: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut bytes = [0; TCMSG];
    for (at, value) in [(4, index), (8, handle), (12, parent), (16, info)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn new_ifb(name: &str) -> Message {
    let mut body = [0; IFINFOMSG];
    // Flags, and which of them are given.
    body[8..12].copy_from_slice(&UP.to_ne_bytes());
    body[12..16].copy_from_slice(&UP.to_ne_bytes());
    let message = Message::new(NEW_LINK, ACK | CREATE | EXCLUSIVE, &body).text(IFLA_IFNAME, name);
    message.nested(IFLA_LINKINFO, |about| about.text(IFLA_INFO_KIND, "ifb"))
}

/// `more`: options in addition to those of `queue`.
fn put_queue(index: u32, queue: &Queue, more: impl FnOnce(Message) -> Message) -> Message {
    let (kind, name) = match queue {
        Queue::Rate { .. } => (QueueKind::Rate, "tbf"),
        Queue::Departures { .. } => (QueueKind::Departures, "fq"),
    };
    let place = tcmsg(index, kind.handle(), ROOT, 0);
    let message = Message::new(NEW_QDISC, ACK | CREATE | REPLACE, &place).text(TCA_KIND, name);
    message.nested(TCA_OPTIONS, |empty| more(queue_options(empty, queue)))
}

fn queue_options(empty: Message, queue: &Queue) -> Message {
    match *queue {
        Queue::Rate { bytes_per_second, burst_bytes, limit_bytes } => empty
            .attribute(TBF_PARAMETERS, &tbf_parameters(bytes_per_second, limit_bytes))
            .attribute(TBF_RATE64, &bytes_per_second.to_ne_bytes())
            .number(TBF_BURST, burst_bytes),
        // Without fq's own pacing: sockets that detect pacing rely on it from then on, even after the queue is gone.
        Queue::Departures { limit_packets, slack_ns } => empty
            .number(FQ_LIMIT, limit_packets)
            .number(FQ_FLOW_LIMIT, limit_packets)
            .number(FQ_PACING, 0)
            .number(FQ_TIMER_SLACK, slack_ns)
            .number(FQ_HORIZON, FQ_HORIZON_US)
            .attribute(FQ_HORIZON_DROP, &[0]),
    }
}

/// `tc_tbf_qopt`: two `tc_ratespec` (the second, for peaks, is unused), limit, buffer, mtu. It names the link layer, so that the
/// kernel needs no rate table.
fn tbf_parameters(bytes_per_second: u64, limit_bytes: u32) -> [u8; 36] {
    const ETHERNET: u8 = 1;
    let mut bytes = [0; 36];
    bytes[1] = ETHERNET;
    bytes[8..12].copy_from_slice(&u32::try_from(bytes_per_second).unwrap_or(u32::MAX).to_ne_bytes());
    bytes[24..28].copy_from_slice(&limit_bytes.to_ne_bytes());
    bytes
}

/// `tc_mirred`: a redirection takes the packet (`TC_ACT_STOLEN`) and sends it to the egress of an interface (`TCA_EGRESS_REDIR`).
fn redirection(to: u32) -> [u8; 28] {
    const STOLEN: u32 = 4;
    const EGRESS_REDIRECTION: u32 = 1;
    let mut bytes = [0; 28];
    for (at, value) in [(8, STOLEN), (20, EGRESS_REDIRECTION), (24, to)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn information(priority: u16) -> u32 {
    u32::from(priority) << 16 | EVERY_PROTOCOL
}

/// Parses a filter of any kind. The kernel dumps each priority once more, without a handle, for the chain itself; that entry is no filter.
fn filter(body: &[u8], index: u32, direction: Direction) -> Option<Filter> {
    let handle = u32_at(body, 8);
    if handle == 0 || u32_at(body, 4) != index {
        return None;
    }
    let outer = attributes(body.get(TCMSG..)?);
    let options = attributes(attribute(&outer, TCA_OPTIONS).unwrap_or_default());
    let number = |kind| attribute(&options, kind).map_or(0, |value| u32_at(value, 0));
    let hook = Hook {
        name: attribute(&options, BPF_NAME).map(text).unwrap_or_default(),
        direction,
        priority: (u32_at(body, 16) >> 16) as u16,
        number: number(BPF_CLASSID) as u16,
    };
    Some(Filter { hook, program: number(BPF_ID), handle })
}

/// `rtnl_link_stats64` begins with packets, bytes, errors and drops, each in and out.
pub(crate) fn interface(body: &[u8]) -> Interface {
    let all = attributes(body.get(IFINFOMSG..).unwrap_or_default());
    let stats = attribute(&all, IFLA_STATS64).unwrap_or_default();
    let counters = Counters {
        in_packets: u64_at(stats, 0),
        out_packets: u64_at(stats, 8),
        in_bytes: u64_at(stats, 16),
        out_bytes: u64_at(stats, 24),
        in_dropped: u64_at(stats, 48),
        out_dropped: u64_at(stats, 56),
    };
    let name = attribute(&all, IFLA_IFNAME).map(text).unwrap_or_default();
    let mtu = attribute(&all, IFLA_MTU).map_or(0, |value| u32_at(value, 0));
    Interface { index: u32_at(body, 4), link: u16_at(body, 2), name, mtu, counters, peer: peer(&all) }
}

/// Other kinds of interface also refer to a lower interface, which is not a peer.
fn peer(all: &[(u16, &[u8])]) -> Option<Peer> {
    let about = attributes(attribute(all, IFLA_LINKINFO)?);
    let is_veth = attribute(&about, IFLA_INFO_KIND).map(text)? == "veth";
    let index = u32_at(attribute(all, IFLA_LINK)?, 0);
    let namespace = attribute(all, IFLA_LINK_NAMESPACE).map(|value| u32_at(value, 0));
    (is_veth && index != 0).then_some(Peer { index, namespace })
}
