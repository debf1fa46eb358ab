//! `/proc/net/dev`: bytes, packets, errors and drops of each interface in the reader's network namespace.

use partywall_kernels::Resource::{LocalCommunication, Network};

use crate::counter::{Column, Group, BYTES, COUNT};
use crate::reader::Builder;
use crate::table::Table;
use crate::text::numbers_at;

pub(crate) const GROUP: Group = Group {
    file: "/proc/net/dev",
    subject: "each interface (`lo` is evidence of local_communication)",
    columns: &[
        Column::total("receive bytes", "network_received_bytes", "data received", BYTES, Network, "bytes received"),
        Column::total("receive packets", "network_received_packets_count", "packets received", COUNT, Network, "packets received"),
        Column::total("receive errs", "network_receive_errors_count", "packets received broken", COUNT, Network, "packets received broken"),
        Column::total(
            "receive drop",
            "network_receive_drops_count",
            "received packets dropped",
            COUNT,
            Network,
            "packets received and dropped: no buffer or nobody to take them",
        ),
        Column::total("transmit bytes", "network_sent_bytes", "data sent", BYTES, Network, "bytes sent"),
        Column::total("transmit packets", "network_sent_packets_count", "packets sent", COUNT, Network, "packets sent"),
        Column::total(
            "transmit errs",
            "network_send_errors_count",
            "packets that could not be sent",
            COUNT,
            Network,
            "packets that could not be sent",
        ),
        Column::total(
            "transmit drop",
            "network_send_drops_count",
            "packets dropped before sending",
            COUNT,
            Network,
            "packets dropped before they were sent: the queue was full",
        ),
    ],
    cost: "no rates and drops of the network",
    remedy: "mount procfs on /proc; a kernel built with CONFIG_NET",
};

pub(crate) fn open(builder: &mut Builder) {
    let Some((file, text)) = builder.open(&GROUP, GROUP.file) else { return };
    let wanted = builder.targets.interfaces.clone();
    let table = Table::new(&text, parse_line, GROUP.columns, |name| wanted.as_ref().is_none_or(|wanted| wanted.iter().any(|w| w == name)));
    for interface in wanted.iter().flatten().filter(|interface| !table.subjects().contains(interface)) {
        builder.lack(&GROUP, format!("{} does not list interface {interface}", GROUP.file));
    }
    let mut header = table.header();
    for counter in header.iter_mut().filter(|counter| counter.subject.as_deref() == Some("lo")) {
        counter.resource = LocalCommunication;
    }
    builder.add_file(vec![(&GROUP, header)], file, move |text, row| table.fill(text, row));
}

/// The colon may touch the first number, and names may hold colons (aliases).
fn parse_line(line: &[u8]) -> Option<(&[u8], [Option<f64>; 8])> {
    let colon = line.iter().rposition(|&byte| byte == b':')?;
    Some((line[..colon].trim_ascii(), numbers_at(&line[colon + 1..], [0, 1, 2, 3, 8, 9, 10, 11])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0
eth0:1:597622757   13198    1    2    0     0          0         0   760304    8107    3    4    0     0       0          0
";

    #[test]
    fn both_directions_are_read_and_the_heading_is_not() {
        let table = Table::new(TEXT, parse_line, GROUP.columns, |_| true);
        let mut row = vec![None; table.width()];
        table.fill(TEXT, &mut row);
        assert_eq!(table.subjects(), ["lo", "eth0:1"]);
        assert_eq!(row[8..], [597_622_757, 13198, 1, 2, 760_304, 8107, 3, 4].map(|value| Some(f64::from(value))));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(lo:|[0-9 ]|.|\n)*") {
            let table = Table::new(text.as_bytes(), parse_line, GROUP.columns, |_| true);
            table.fill(text.as_bytes(), &mut vec![None; table.width()]);
        }
    }
}
