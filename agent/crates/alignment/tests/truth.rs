//! Compares the aligner with a simulated path of known truth: every packet's times, losses, duplicates and order.

use partywall_alignment::{Aligner, Counts, Fate, Kind, Merge, Passage, Seen, Settings, Sink};
use proptest::prelude::*;

const HOPS: usize = 3;
const MS: u64 = 1_000_000;

#[derive(Default)]
struct Finished(Vec<Passage>);

impl Sink for Finished {
    fn duplicate(&mut self, _: usize) {}
    fn reordered(&mut self, _: usize) {}
    fn finished(&mut self, passage: &Passage) {
        self.0.push(*passage);
    }
}

/// One simulated packet: its time at each hop (None after it was lost), and whether it was duplicated there.
#[derive(Clone, Debug)]
struct Journey {
    flow: u64,
    tag: u64,
    times: [Option<u64>; HOPS],
    doubled: [bool; HOPS],
}

/// Flow, times between hops, hop at which it is lost, and hops at which it is duplicated.
type Drawn = (u64, [u64; HOPS], Option<usize>, [bool; HOPS]);

fn journey() -> impl Strategy<Value = Drawn> {
    let rarely = || proptest::bool::weighted(0.05);
    let lost = proptest::option::weighted(0.2, 1..HOPS);
    (0_u64..3, [1_u64..2 * MS, 1..2 * MS, 1..2 * MS], lost, [Just(false).boxed(), rarely().boxed(), rarely().boxed()])
}

fn journeys() -> impl Strategy<Value = Vec<Journey>> {
    proptest::collection::vec(journey(), 1..300).prop_map(|all| {
        let mut start = 1_000 * MS;
        let travel = |(number, (flow, steps, lost, doubled)): (usize, Drawn)| {
            start += steps[0] / 8;
            let mut at = start;
            let times = std::array::from_fn(|hop| {
                at += if hop > 0 { steps[hop] } else { 0 };
                lost.is_none_or(|lost| hop < lost).then_some(at)
            });
            Journey { flow, tag: number as u64, times, doubled }
        };
        all.into_iter().enumerate().map(travel).collect()
    })
}

fn records(journeys: &[Journey]) -> Vec<Seen> {
    let mut all = Vec::new();
    for journey in journeys {
        for hop in 0..HOPS {
            let Some(time_ns) = journey.times[hop] else { continue };
            let seen = Seen { time_ns, flow: journey.flow, tag: journey.tag, length: 100, hop: hop as u8, kind: Kind::Whole };
            all.push(seen);
            all.extend(journey.doubled[hop].then_some(Seen { time_ns: time_ns + 10, ..seen }));
        }
    }
    all.sort_by_key(|seen| seen.time_ns);
    all
}

/// Number of packets that reached `hop` after one of their flow that they preceded at the previous hop. Packets of the same
/// nanosecond arrive in the order of their records.
fn overtaken(journeys: &[Journey], hop: usize) -> u64 {
    let mut count = 0;
    for flow in 0..3 {
        let mut came: Vec<(u64, u64)> = journeys
            .iter()
            .filter(|journey| journey.flow == flow)
            .filter_map(|journey| Some((journey.times[hop]?, journey.times[hop - 1]?)))
            .collect();
        came.sort_by_key(|&(at, _)| at);
        let mut ahead = 0;
        for (_, before) in came {
            count += u64::from(before < ahead);
            ahead = ahead.max(before);
        }
    }
    count
}

fn align(records: &[Seen], settings: Settings) -> (Counts, Vec<Passage>) {
    let mut aligner = Aligner::new(settings, (Counts::default(), Finished::default()));
    for seen in records {
        aligner.push(seen);
    }
    aligner.advance(u64::MAX);
    aligner.finish();
    let (counts, finished) = aligner.sink();
    (counts.clone(), std::mem::take(&mut finished.0))
}

fn settings() -> Settings {
    Settings { horizon_ns: 50 * MS, ..Settings::of(HOPS) }
}

proptest! {
    #[test]
    fn events_on_the_path_are_recovered_exactly(journeys in journeys()) {
        let (counts, finished) = align(&records(&journeys), settings());
        let delivered = journeys.iter().filter(|j| j.times[HOPS - 1].is_some()).count() as u64;
        prop_assert_eq!(counts.delivered, delivered);
        for hop in 1..HOPS {
            let reached = |flow: u64| journeys.iter().any(|j| j.flow == flow && j.times[hop].is_some());
            let gone = |j: &&Journey| j.times[hop].is_none() && j.times[hop - 1].is_some();
            let lost = journeys.iter().filter(gone).filter(|j| reached(j.flow)).count() as u64;
            let astray = journeys.iter().filter(gone).filter(|j| !reached(j.flow)).count() as u64;
            let doubled = journeys.iter().filter(|j| j.doubled[hop] && j.times[hop].is_some()).count() as u64;
            let seen = &counts.hops[hop];
            prop_assert_eq!((seen.lost, seen.astray, seen.duplicates), (lost, astray, doubled));
            prop_assert_eq!(seen.reordered, overtaken(&journeys, hop));
            prop_assert_eq!((seen.skipped, seen.stray, seen.delay.negative), (0, 0, 0));
        }
        prop_assert_eq!(finished.len(), journeys.len());
        for passage in finished {
            let truth = &journeys[passage.tag as usize];
            prop_assert_eq!(&passage.times[..HOPS], &truth.times[..]);
        }
    }

    #[test]
    fn sources_with_alternating_records_give_the_same_result_as_one(journeys in journeys(), cut in 1_u64..7) {
        let all = records(&journeys);
        // The order of two records of the same nanosecond from two sources is unknown.
        prop_assume!(all.windows(2).all(|pair| pair[0].time_ns < pair[1].time_ns));
        let mut merge = Merge::new(2);
        let mut merged = Vec::new();
        for batch in all.chunks(17) {
            for seen in batch {
                assert!(merge.push(usize::from(seen.tag % cut == 0), *seen));
            }
            for source in 0..2 {
                merge.advance(source, batch.last().unwrap().time_ns);
            }
            merge.release(|seen| merged.push(*seen));
        }
        merge.finish(|seen| merged.push(*seen));
        prop_assert_eq!(align(&merged, settings()).0, align(&all, settings()).0);
    }

    #[test]
    fn every_record_is_counted_whatever_the_input(
        records in proptest::collection::vec((0_u64..200 * MS, 0_u64..4, 0_u64..6, 0_u8..3, 0_u32..9, any::<bool>()), 0..400),
        units_max in 1_usize..50,
    ) {
        // Invalid input must not cause a panic or lose records: each record starts a packet, joins one, or is a duplicate.
        let mut records: Vec<Seen> = records
            .into_iter()
            .map(|(time_ns, flow, tag, hop, length, range)| {
                let (kind, flow) = if range { (Kind::Range, flow + 10) } else { (Kind::Whole, flow) };
                Seen { time_ns, flow, tag, length: length.max(1), hop, kind }
            })
            .collect();
        records.sort_by_key(|seen| seen.time_ns);
        let whole = records.iter().filter(|seen| seen.kind == Kind::Whole).count();
        let settings = Settings { units_max, flows_max: 2, horizon_ns: 20 * MS, ..Settings::of(HOPS) };
        let (_, finished) = align(&records, settings);
        let mut aligner = Aligner::new(settings, Counts::default());
        records.iter().filter(|seen| seen.kind == Kind::Whole).for_each(|seen| aligner.push(seen));
        prop_assert!(aligner.live() <= units_max);
        aligner.finish();
        let doubles: u64 = aligner.sink().hops.iter().map(|hop| hop.duplicates).sum();
        let places: usize = finished.iter().filter(|p| p.kind == Kind::Whole).map(|p| p.times.iter().flatten().count()).sum();
        prop_assert!(places as u64 <= whole as u64 && doubles <= whole as u64);
    }
}

/// A stream sent in `sent` segments (lengths), seen at the next hops cut or joined into `cuts`; `lost` bytes disappear.
fn stream(sent: &[u32], cuts: &[u32], lost: &[bool]) -> Vec<Seen> {
    let at = |time_ns: u64, from: u32, length: u32, hop: u8| Seen {
        time_ns,
        flow: 7,
        // Near the maximum number, so that numbers wrap; the epoch is in the upper half.
        tag: (3 << 32) | u64::from((u32::MAX - 5_000).wrapping_add(from)),
        length,
        hop,
        kind: Kind::Range,
    };
    let mut records = Vec::new();
    let (mut from, mut time_ns) = (0, MS);
    for &length in sent {
        records.push(at(time_ns, from, length, 0));
        (from, time_ns) = (from + length, time_ns + 10);
    }
    let total = from;
    for hop in 1..3 {
        let (mut from, mut time_ns) = (0, MS * (1 + u64::from(hop)));
        for (&length, &gone) in cuts.iter().zip(lost).cycle() {
            let length = length.min(total - from);
            if length == 0 {
                break;
            }
            if !gone {
                records.push(at(time_ns, from, length, hop));
            }
            (from, time_ns) = (from + length, time_ns + 10);
        }
    }
    records
}

proptest! {
    #[test]
    fn segments_cut_and_joined_are_matched_by_their_bytes(
        sent in proptest::collection::vec(1_u32..9_000, 1..40),
        cuts in proptest::collection::vec((1_u32..9_000, proptest::bool::weighted(0.1)), 1..20),
    ) {
        let (cuts, lost): (Vec<u32>, Vec<bool>) = cuts.into_iter().unzip();
        let records = stream(&sent, &cuts, &lost);
        let (counts, finished) = align(&records, settings());
        prop_assert_eq!(finished.len(), sent.len());
        // A segment arrived if every one of its bytes did.
        let through: Vec<(u32, u32)> = records
            .iter()
            .filter(|seen| seen.hop == 1)
            .map(|seen| ((seen.tag as u32).wrapping_sub(u32::MAX - 5_000), seen.length))
            .collect();
        let mut from = 0;
        let mut whole = 0;
        for &length in &sent {
            let there: u32 = through.iter().map(|&(start, cut)| (start + cut).min(from + length).saturating_sub(start.max(from))).sum();
            whole += u64::from(there == length);
            from += length;
        }
        prop_assert_eq!(counts.delivered, whole);
        prop_assert_eq!(counts.hops[1].lost + counts.hops[1].astray, sent.len() as u64 - whole);
        prop_assert_eq!(counts.hops[2].lost + counts.hops[2].astray, 0);
        prop_assert_eq!(counts.hops.iter().map(|hop| hop.duplicates + hop.reordered + hop.stray).sum::<u64>(), 0);
    }
}

fn seen(time_ns: u64, tag: u64, hop: u8) -> Seen {
    Seen { time_ns, flow: 1, tag, length: 10, hop, kind: Kind::Whole }
}

#[test]
fn a_retransmission_is_another_packet_and_not_a_duplicate() {
    let range = |time_ns, epoch: u64, hop| Seen { time_ns, flow: 1, tag: (epoch << 32) + 500, length: 100, hop, kind: Kind::Range };
    let later = |time_ns, hop| Seen { time_ns, flow: 1, tag: (1 << 32) + 600, length: 100, hop, kind: Kind::Range };
    let records = [range(1, 1, 0), later(2, 0), later(3, 1), later(4, 2), range(5 * MS, 6, 0), range(6 * MS, 6, 1), range(7 * MS, 6, 2)];
    let (counts, _) = align(&records, settings());
    assert_eq!((counts.delivered, counts.hops[1].lost, counts.hops[0].duplicates), (2, 1, 0));
}

#[test]
fn flows_that_never_reach_a_hop_are_distinguished_from_loss() {
    let mut records = vec![seen(1, 1, 0), seen(2, 1, 1), seen(3, 1, 2), seen(4, 2, 0), seen(5, 2, 1)];
    records.push(Seen { flow: 2, ..seen(6, 1, 0) });
    records.push(Seen { flow: 3, ..seen(7, 1, 1) });
    let (counts, _) = align(&records, settings());
    assert_eq!((counts.hops[2].lost, counts.hops[1].astray, counts.other), (1, 1, 1));
}

#[test]
fn a_packet_without_a_record_at_one_hop_is_skipped_and_not_lost() {
    let (counts, _) = align(&[seen(1, 1, 0), seen(3, 1, 2), seen(4, 2, 0), seen(5, 2, 1), seen(6, 2, 2)], settings());
    assert_eq!((counts.delivered, counts.hops[1].skipped, counts.hops[1].lost), (2, 1, 0));
}

#[test]
fn negative_delays_are_counted_separately() {
    let (counts, _) = align(&[seen(100, 1, 1), seen(130, 1, 0), seen(150, 1, 2)], settings());
    let [_, mut to_second, mut to_third, ..] = counts.hops.map(|hop| hop.delay);
    assert_eq!((to_second.negative, to_second.negative_max_ns), (1, 30));
    assert_eq!((to_second.counts.take().count(), to_third.counts.take().count()), (0, 1));
}

#[test]
fn packets_above_the_limit_are_given_up_and_counted() {
    let settings = Settings { units_max: 4, ..settings() };
    let mut aligner = Aligner::new(settings, Counts::default());
    (0..10).for_each(|tag| aligner.push(&seen(tag, tag, 0)));
    assert_eq!((aligner.live(), aligner.forced()), (4, 6));
}

#[test]
fn after_closing_packets_in_transit_arrive_and_no_packet_begins() {
    let mut aligner = Aligner::new(settings(), Counts::default());
    aligner.push(&seen(10, 1, 0));
    aligner.close(20);
    for record in [seen(20, 2, 0), seen(21, 1, 1), seen(22, 1, 2)] {
        aligner.push(&record);
    }
    aligner.finish();
    assert_eq!((aligner.sink().delivered, aligner.sink().hops[0].packets), (1, 1));
}

#[test]
fn a_retransmission_after_closing_is_no_duplicate_of_an_earlier_packet() {
    let mut aligner = Aligner::new(settings(), Counts::default());
    let both = |aligner: &mut Aligner<Counts>, start: u64| {
        for hop in 0..3 {
            let at = seen(start + u64::from(hop), 1, hop);
            aligner.push(&at);
            aligner.push(&Seen { kind: Kind::Range, tag: 100, ..at });
        }
    };
    both(&mut aligner, 10);
    aligner.close(20);
    both(&mut aligner, 20);
    aligner.finish();
    let counts = aligner.sink();
    assert_eq!((counts.delivered, counts.hops[0].packets), (2, 2));
    assert!(counts.hops.iter().all(|hop| hop.duplicates == 0), "{counts:?}");
}

#[test]
fn flows_no_longer_sampled_are_not_lost() {
    let mut aligner = Aligner::new(settings(), (Counts::default(), Finished::default()));
    let other = |time_ns, hop| Seen { flow: 2, ..seen(time_ns, 9, hop) };
    for record in [seen(1, 1, 0), seen(2, 1, 1), seen(3, 2, 0), other(4, 0), other(5, 1)] {
        aligner.push(&record);
    }
    aligner.cut(|flow| flow == 2);
    aligner.push(&other(6, 2));
    aligner.push(&seen(7, 3, 0));
    aligner.advance(u64::MAX);
    let (counts, finished) = aligner.sink();
    assert_eq!((counts.unfinished, counts.delivered, counts.hops[1].lost + counts.hops[2].lost), (2, 1, 0));
    assert!(finished.0.iter().all(|passage| !matches!(passage.fate, Fate::Lost { .. })));
}

#[test]
fn a_packet_sent_twice_is_two_packets_and_one_duplicated_on_the_path_is_a_duplicate() {
    let twice = [seen(1, 1, 0), seen(2, 1, 0), seen(3, 1, 1), seen(4, 1, 1), seen(5, 1, 2)];
    let (counts, _) = align(&twice, settings());
    assert_eq!((counts.hops[0].packets, counts.delivered, counts.hops[2].lost, counts.hops[1].duplicates), (2, 1, 1, 0));
    let (counts, _) = align(&[seen(1, 1, 0), seen(2, 1, 1), seen(3, 1, 1), seen(4, 1, 2)], settings());
    assert_eq!((counts.hops[0].packets, counts.delivered, counts.hops[1].duplicates), (1, 1, 1));
}

#[test]
fn bytes_lost_and_repeated_within_an_epoch_do_not_hide_the_loss() {
    let range = |time_ns, from: u64, length, hop| Seen { time_ns, flow: 1, tag: (1 << 32) + from, length, hop, kind: Kind::Range };
    // 3000 bytes are lost. They are repeated in three segments, two of which are joined on the path.
    let mut records = vec![range(1, 0, 3000, 0), range(2, 3000, 1000, 0), range(3, 3000, 1000, 1), range(4, 3000, 1000, 2)];
    records.extend([range(10, 0, 1000, 0), range(11, 1000, 1000, 0), range(12, 2000, 1000, 0)]);
    records.extend([range(13, 0, 2000, 1), range(14, 2000, 1000, 1), range(15, 0, 2000, 2), range(16, 2000, 1000, 2)]);
    let (counts, _) = align(&records, settings());
    assert_eq!((counts.delivered, counts.hops[1].lost, counts.hops[1].duplicates + counts.hops[2].duplicates), (4, 1, 0));
}

#[test]
fn identical_packets_are_in_no_delay_until_the_lost_one_is_given_up() {
    let pass = |at_ns: u64| [seen(at_ns, 1, 0), seen(at_ns + 10, 1, 1), seen(at_ns + 20, 1, 2)];
    let mut records = vec![seen(1, 1, 0)];
    records.extend([1000, 2000, 600 * MS].into_iter().flat_map(pass));
    let (mut counts, _) = align(&records, settings());
    assert_eq!((counts.delivered, counts.hops[1].lost, counts.alike), (3, 1, 3));
    assert_eq!((counts.total.counts.take().count(), counts.total.max_ns), (1, Some(20)));
    assert_eq!(counts.hops.iter().map(|hop| hop.reordered + hop.duplicates).sum::<u64>(), 0);
}

/// CPU time to align packets that all leave within the horizon, and what was counted. `hop_ns`: time from hop to hop.
fn spent(kind: Kind, tag: fn(u64) -> u64, hop_ns: u64) -> (u64, Counts, u64) {
    const PACKETS: u64 = 20_000;
    let packet = |number: u64| {
        (0..HOPS as u64).map(move |hop| {
            let time_ns = 1_000 * MS + number * 600 + hop * hop_ns;
            Seen { time_ns, flow: 1, tag: tag(number), length: 100, hop: hop as u8, kind }
        })
    };
    let mut records: Vec<Seen> = (0..PACKETS).flat_map(packet).collect();
    records.sort_by_key(|seen| seen.time_ns);
    let mut aligner = Aligner::new(settings(), Counts::default());
    let before_ns = partywall_clock::thread_cpu();
    for seen in &records {
        aligner.push(seen);
    }
    aligner.finish();
    let spent_ns = partywall_clock::thread_cpu() - before_ns;
    let forced = aligner.forced();
    (spent_ns, std::mem::take(aligner.sink()), forced)
}

#[test]
fn identical_packets_take_about_as_long_as_distinct_ones() {
    // Packets are delivered at once, or all are in transit together.
    for (kind, hop_ns) in [(Kind::Whole, 100), (Kind::Whole, 10 * MS), (Kind::Range, 100), (Kind::Range, 10 * MS)] {
        let (distinct_ns, ..) = spent(kind, |number| number * 100, hop_ns);
        let (alike_ns, counts, forced) = spent(kind, |_| 7, hop_ns);
        assert!(
            alike_ns < 20 * distinct_ns,
            "{kind:?}, {hop_ns} ns: {alike_ns} ns for identical packets, {distinct_ns} ns for distinct ones"
        );
        if kind == Kind::Whole || hop_ns == 100 {
            let repeated: u64 = counts.hops.iter().map(|hop| hop.duplicates).sum();
            assert_eq!((counts.delivered, repeated, forced), (20_000, 0, 0), "{kind:?}, {hop_ns} ns");
        } else {
            assert!(forced > 0, "those that are given up are counted");
        }
    }
}

#[test]
fn a_retransmission_without_a_timestamp_overtakes_nobody_and_has_no_delay() {
    let range = |time_ns, from: u64, hop| Seen { time_ns, flow: 1, tag: from, length: 100, hop, kind: Kind::Range };
    let mut records = vec![range(1, 0, 0), range(2, 100, 0), range(3, 100, 1), range(4, 100, 2)];
    records.extend([range(4 * MS, 0, 0), range(4 * MS + 10, 0, 1), range(4 * MS + 20, 0, 2)]);
    let (counts, _) = align(&records, settings());
    assert_eq!((counts.delivered, counts.hops[1].lost, counts.alike), (2, 1, 2));
    assert_eq!((counts.hops[1].reordered, counts.hops[2].reordered, counts.total.max_ns), (0, 0, Some(2)));
}
