//! `/proc/net/netstat`: connections dropped because a listener's queue was full, in the reader's network namespace.

use partywall_kernels::Resource::Network;

use super::header;
use super::snmp::fill_pairs;
use crate::counter::{Column, Group, COUNT};
use crate::reader::{Builder, Row};

pub(crate) const GROUP: Group = Group {
    file: "/proc/net/netstat",
    subject: "the host",
    columns: &[Column::total(
        "TcpExt: ListenDrops",
        "tcp_listen_drops_count",
        "connections dropped by a listener",
        COUNT,
        Network,
        "connections that a listening socket dropped, mostly because its program accepts too slowly",
    )],
    cost: "connections that a listener drops are not seen",
    remedy: "mount procfs on /proc; a kernel built with CONFIG_NET",
};

pub(crate) fn open(builder: &mut Builder) {
    if let Some((file, _)) = builder.open(&GROUP, GROUP.file) {
        builder.add_file(vec![(&GROUP, header(GROUP.columns, None))], file, fill);
    }
}

fn fill(text: &[u8], row: &mut Row) {
    fill_pairs(GROUP.columns, text, row);
}

#[cfg(test)]
mod tests {
    use super::super::testing::value;
    use super::*;

    #[test]
    fn dropped_connections_are_found_by_their_name() {
        let mut row = vec![None];
        fill(b"TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 2 3\nIpExt: ListenDrops\nIpExt: 9\n", &mut row);
        assert_eq!(value(GROUP.columns, &row, "tcp_listen_drops_count"), Some(3.0));
    }
}
