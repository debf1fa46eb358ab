//! `/proc/net/softnet_stat`: whether CPUs kept up with arriving packets, summed over all CPUs.

use partywall_kernels::Resource::Network;

use super::open_host;
use crate::counter::{Column, Group, COUNT};
use crate::reader::{Builder, Row};
use crate::text::{hexadecimal, lines, words};

pub(crate) const GROUP: Group = Group {
    file: "/proc/net/softnet_stat",
    subject: "the host",
    columns: &[
        Column::total("1st", "softnet_processed_count", "packets taken from interfaces", COUNT, Network, "packets taken from interfaces"),
        Column::total(
            "2nd",
            "softnet_dropped_count",
            "packets dropped for a full backlog",
            COUNT,
            Network,
            "packets dropped because a CPU's backlog was full",
        ),
        Column::total(
            "3rd",
            "softnet_squeezed_count",
            "packet rounds cut short",
            COUNT,
            Network,
            "a CPU gave up before all packets were taken: too many packets or too little CPU",
        ),
    ],
    cost: "drops and delays between interface and protocol are not seen",
    remedy: "mount procfs on /proc; a kernel built with CONFIG_NET",
};

pub(crate) fn open(builder: &mut Builder) {
    open_host(builder, &GROUP, fill);
}

fn fill(text: &[u8], row: &mut Row) {
    for line in lines(text) {
        for (sum, word) in row.iter_mut().zip(words(line)) {
            if let Some(value) = hexadecimal(word) {
                *sum = Some(sum.unwrap_or(0.0) + value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> [Option<f64>; 3] {
        let mut row = [None; 3];
        fill(text, &mut row);
        row
    }

    #[test]
    fn hexadecimal_columns_are_summed_over_cpus() {
        assert_eq!(parse(b"0000000e 00000001 00000000 0 0\n0000339d 00000002 0000000a 0 0\n"), [Some(13_227.0), Some(3.0), Some(10.0)]);
    }

    #[test]
    fn nothing_is_not_zero() {
        assert_eq!(parse(b"\n"), [None; 3]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            let _ = parse(&text);
        }
    }
}
