//! `/proc/net/snmp`: TCP retransmissions and UDP drops, in the reader's network namespace.

use partywall_kernels::Resource::Network;

use super::open_host;
use crate::counter::{Column, Group, COUNT};
use crate::reader::{Builder, Row};
use crate::text::{lines, number, words};

pub(crate) const GROUP: Group = Group {
    file: "/proc/net/snmp",
    subject: "the host",
    columns: &[
        Column::total("Tcp: InSegs", "tcp_received_segments_count", "TCP segments received", COUNT, Network, "TCP segments received"),
        Column::total("Tcp: OutSegs", "tcp_sent_segments_count", "TCP segments sent", COUNT, Network, "TCP segments sent"),
        Column::total(
            "Tcp: RetransSegs",
            "tcp_retransmitted_segments_count",
            "TCP segments sent again",
            COUNT,
            Network,
            "TCP segments sent again: lost or late on the way",
        ),
        Column::total("Udp: InDatagrams", "udp_received_datagrams_count", "datagrams received", COUNT, Network, "UDP datagrams delivered"),
        Column::total("Udp: OutDatagrams", "udp_sent_datagrams_count", "datagrams sent", COUNT, Network, "UDP datagrams sent"),
        Column::total(
            "Udp: RcvbufErrors",
            "udp_receive_buffer_errors_count",
            "datagrams dropped for a slow receiver",
            COUNT,
            Network,
            "UDP datagrams dropped because the receiver was too slow to take them",
        ),
        Column::total(
            "Udp: SndbufErrors",
            "udp_send_buffer_errors_count",
            "datagrams not sent for lack of buffer",
            COUNT,
            Network,
            "UDP datagrams not sent for lack of buffer",
        ),
    ],
    cost: "retransmissions and receive buffer drops are not seen",
    remedy: "mount procfs on /proc; a kernel built with CONFIG_NET",
};

pub(crate) fn open(builder: &mut Builder) {
    open_host(builder, &GROUP, fill);
}

fn fill(text: &[u8], row: &mut Row) {
    fill_pairs(GROUP.columns, text, row);
}

/// Lines come in pairs: `Udp: names` and `Udp: numbers`.
pub(super) fn fill_pairs(columns: &[Column], text: &[u8], row: &mut Row) {
    let mut lines = lines(text);
    while let (Some(names), Some(numbers)) = (lines.next(), lines.next()) {
        let Some(protocol) = words(names).next() else { continue };
        for (value, column) in row.iter_mut().zip(columns) {
            let Some((of, name)) = column.key.split_once(' ') else { continue };
            if of.as_bytes() == protocol {
                let place = words(names).position(|word| word == name.as_bytes());
                *value = place.and_then(|place| number(words(numbers).nth(place)?));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{filled, value};
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Vec<Option<f64>> {
        filled(GROUP.columns, text, fill)
    }

    #[test]
    fn numbers_are_found_by_the_names_above_them() {
        let row = parse(
            b"Tcp: RtoMin MaxConn InSegs OutSegs RetransSegs\nTcp: 200 -1 13139 8043 7\n\
              Udp: InDatagrams NoPorts OutDatagrams RcvbufErrors SndbufErrors\nUdp: 79 0 80 5 6\n\
              UdpLite: InDatagrams\nUdpLite: 1000\n",
        );
        assert_eq!(value(GROUP.columns, &row, "tcp_retransmitted_segments_count"), Some(7.0));
        assert_eq!(value(GROUP.columns, &row, "udp_received_datagrams_count"), Some(79.0), "UdpLite is another protocol");
        assert_eq!(value(GROUP.columns, &row, "udp_receive_buffer_errors_count"), Some(5.0));
    }

    #[test]
    fn a_name_the_kernel_does_not_write_stays_empty() {
        assert_eq!(parse(b"Udp: InDatagrams\nUdp:\n"), vec![None; 7]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(Udp: |Tcp: |InSegs |[0-9 ]|.|\n)*") {
            let _ = parse(text.as_bytes());
        }
    }
}
