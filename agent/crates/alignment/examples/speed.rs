//! Measures how many records per second one core aligns. Prints `datagrams RATE` and `stream RATE`, in records per second of merge,
//! alignment and count together. `benches/trace_accounting.py` reads them.

use std::io::Write;

use partywall_alignment::{Aligner, Counts, Kind, Merge, Seen, Settings};
use partywall_clock as clock;

const HOPS: u64 = 3;
const STEP_NS: u64 = 600;
const BATCH: u64 = 1000;

/// Packet `number` at `hop`: one packet every 600 ns (1.67 million per second), 2 µs between hops.
fn record(number: u64, hop: u64, kind: Kind) -> Seen {
    let tag = if kind == Kind::Range { (number * 1448) & 0xffff_ffff } else { number };
    Seen { time_ns: 1_000_000_000 + number * STEP_NS + hop * 2_000, flow: number % 8, tag, length: 1448, hop: hop as u8, kind }
}

fn run(packets: u64, kind: Kind) -> f64 {
    let mut aligner = Aligner::new(Settings { horizon_ns: 250_000_000, ..Settings::of(HOPS as usize) }, Counts::default());
    let mut merge = Merge::new(HOPS as usize);
    let mut spent_ns = 0;
    for start in (0..packets).step_by(BATCH as usize) {
        let records: Vec<(usize, Seen)> =
            (0..HOPS).flat_map(|hop| (start..start + BATCH).map(move |number| (hop as usize, record(number, hop, kind)))).collect();
        let began_ns = clock::thread_cpu();
        for (source, seen) in &records {
            assert!(merge.push(*source, *seen), "too many wait");
        }
        for source in 0..HOPS as usize {
            merge.advance(source, 1_000_000_000 + (start + BATCH) * STEP_NS);
        }
        merge.release(|seen| aligner.push(seen));
        spent_ns += clock::thread_cpu() - began_ns;
    }
    let began_ns = clock::thread_cpu();
    merge.finish(|seen| aligner.push(seen));
    aligner.advance(u64::MAX);
    spent_ns += clock::thread_cpu() - began_ns;
    let delivered = aligner.sink().delivered;
    assert_eq!(delivered, packets, "every packet must have been matched");
    (packets * HOPS) as f64 * 1e9 / spent_ns as f64
}

fn main() -> std::io::Result<()> {
    let packets = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3_000_000) / BATCH * BATCH;
    let mut out = std::io::stdout();
    writeln!(out, "datagrams {:.0}", run(packets, Kind::Whole))?;
    writeln!(out, "stream {:.0}", run(packets, Kind::Range))
}
