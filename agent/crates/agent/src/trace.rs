//! The tracer as a resident of the agent: converts requests and results between the contract's types and the tracer's.

use std::net::{IpAddr, Ipv6Addr};

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use partywall_alignment::{Delay, Fate, Kind, Passage};
use partywall_clock::SessionClock;
use partywall_tracer::{Batch, End, Hook, Hop, HopLoss, Only, Raw, Relay, Report, Settings, Tracer, Translation, Tuple, Upshot, Way};
use partywall_wire::trace as wire;
use partywall_wire::{Event, Fault};

use crate::refusal::refused;
use crate::resident::{Resident, Sink};

/// Permitted number of hops in a path.
const HOPS: std::ops::RangeInclusive<usize> = 2..=partywall_alignment::MAX_HOPS;
/// Records in one message, so that no message becomes too long.
const RECORDS_MAX: usize = 40_000;
const RECORD_BYTES: usize = 8 * Raw::WORDS;

/// A running trace, or the part of one that another agent aligns.
pub(crate) enum Trace {
    Align(Tracer),
    Relay(Relay),
}

impl Resident for Trace {
    const KIND: &'static str = "trace";
    type Start = wire::TraceStart;
    type Started = wire::TraceStarted;
    type Stopped = ();

    /// Starts the requested trace. An error contains everything that is wrong with the request.
    fn start(start: &wire::TraceStart, clock: &SessionClock) -> Result<(Self, wire::TraceStarted), Fault> {
        let settings = settings(start).map_err(|wrong| Fault::usage(wrong.join("\n")))?;
        if start.relay {
            let relay = Relay::start(&settings, &start.id, clock).map_err(refused)?;
            let record_ns = relay.record_ns();
            return Ok((Self::Relay(relay), wire::TraceStarted { record_ns }));
        }
        let tracer = Tracer::start(settings, &start.id, clock).map_err(refused)?;
        let record_ns = tracer.record_ns();
        Ok((Self::Align(tracer), wire::TraceStarted { record_ns }))
    }

    fn ended(&mut self) -> Option<String> {
        match self {
            Self::Align(tracer) => tracer.ended(),
            // It has no thread: records are read when its events are collected.
            Self::Relay(_) => None,
        }
    }

    /// Records in full rings are counted by hop, so nothing is read that would then be dropped.
    fn drain(&self, id: &str, sink: &mut dyn Sink) {
        if sink.is_full() {
            return;
        }
        match self {
            Self::Align(tracer) => tracer.take().into_iter().for_each(|upshot| sink.push(event(id, upshot))),
            Self::Relay(relay) => records(id, &relay.take()).into_iter().for_each(|event| sink.push(event)),
        }
    }

    fn stop(self, id: &str, sink: &mut dyn Sink) {
        match self {
            // Of one that died nothing is whole.
            Self::Align(tracer) if tracer.ended().is_some() => {}
            Self::Align(tracer) => sink.push(event(id, tracer.stop())),
            Self::Relay(relay) => records(id, &relay.take()).into_iter().for_each(|event| sink.push(event)),
        }
    }
}

impl Trace {
    pub(crate) fn feed(&self, feed: &wire::TraceFeed) -> Result<(), Fault> {
        let Self::Align(tracer) = self else { return Err(Fault::usage("a relay accepts no records; send them to the aligning trace")) };
        let bytes = STANDARD.decode(&feed.records).map_err(|error| Fault::usage(format_args!("records: {error}")))?;
        if bytes.len() % RECORD_BYTES != 0 {
            return Err(Fault::usage(format_args!(
                "records: {} bytes are not a multiple of {RECORD_BYTES}; send whole records",
                bytes.len()
            )));
        }
        let records: Vec<Raw> = bytes.chunks_exact(RECORD_BYTES).map(raw).collect();
        tracer.feed(&feed.hops, &records, feed.told_ns, feed.offset_ns, feed.bound_ns).map_err(refused)
    }

    pub(crate) fn sample(&self, below: u64) -> Result<(), Fault> {
        let Self::Relay(relay) = self else { return Err(Fault::usage("only a relay can be sampled on request; give the ID of a relay")) };
        relay.sample_below(below);
        Ok(())
    }

    pub(crate) fn close(&self) -> Result<wire::TraceClosed, Fault> {
        let Self::Align(tracer) = self else { return Err(Fault::usage("a relay cannot be closed; stop it instead")) };
        Ok(wire::TraceClosed { until_ns: tracer.close() })
    }
}

fn settings(start: &wire::TraceStart) -> Result<Settings, Vec<String>> {
    let mut wrong = Vec::new();
    if !start.relay && !HOPS.contains(&start.hops.len()) {
        wrong.push(format!("hops: {} are out of range; give {} to {}", start.hops.len(), HOPS.start(), HOPS.end()));
    }
    let most_ns = partywall_alignment::Settings::HORIZON_MAX_NS;
    if !(1..=most_ns).contains(&start.horizon_ns) {
        wrong.push(format!("horizon_ns: {} is out of range; give 1 to {most_ns}", start.horizon_ns));
    }
    if start.translations.len() > 4 {
        wrong.push(format!("translations: {} are too many; give at most 4", start.translations.len()));
    }
    let mut address =
        |key: &str, text: &str| address(text).map_err(|why| wrong.push(format!("{key}: {why}"))).unwrap_or(Ipv6Addr::UNSPECIFIED);
    let only = start.only.address.as_deref().map(|text| address("only.address", text));
    let translations = start.translations.iter().map(|given| Translation {
        outside: End { address: address("translations.outside", &given.outside.address), port: given.outside.port.unwrap_or(0) },
        inside: End { address: address("translations.inside", &given.inside.address), port: given.inside.port.unwrap_or(0) },
    });
    let settings = Settings {
        hops: start.hops.iter().map(hop).collect(),
        horizon_ns: start.horizon_ns,
        report_ns: start.report_ns,
        budget: start.budget,
        one_in: start.one_in,
        translations: translations.collect(),
        only: Only { protocol: start.only.protocol, port: start.only.port, address: only },
        slowest: start.slowest,
        packets: start.packets,
        ring_bytes: start.ring_bytes,
    };
    if wrong.is_empty() {
        Ok(settings)
    } else {
        Err(wrong)
    }
}

fn address(text: &str) -> Result<Ipv6Addr, String> {
    match text.parse() {
        Ok(IpAddr::V4(address)) => Ok(address.to_ipv6_mapped()),
        Ok(IpAddr::V6(address)) => Ok(address),
        Err(_) => Err(format!("{text:?} is not an IP address; write for example 192.0.2.1 or 2001:db8::1")),
    }
}

fn hop(hop: &wire::TraceHop) -> Hop {
    let hook = hop.hook.map(|hook| match hook {
        wire::TraceHook::In => Hook::Ingress,
        wire::TraceHook::Out => Hook::Egress,
    });
    let wire::TraceHop { name, namespace, interface, remote, .. } = hop.clone();
    Hop { name, namespace, interface, hook, remote }
}

fn raw(bytes: &[u8]) -> Raw {
    let mut words = [0; Raw::WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    }
    Raw(words)
}

/// A relay's batch, split into messages that are not too long.
fn records(id: &str, batch: &Batch) -> Vec<Event> {
    let pieces = batch.records.chunks(RECORDS_MAX).collect::<Vec<_>>();
    let last = pieces.len().saturating_sub(1);
    let pieces = if pieces.is_empty() { vec![&[][..]] } else { pieces };
    let message = |(number, piece): (usize, &[Raw])| {
        let bytes: Vec<u8> = piece.iter().flat_map(|raw| raw.0).flat_map(u64::to_le_bytes).collect();
        // If other pieces follow, times are complete only up to the end of this piece.
        let told_ns = if number == last { batch.told_ns } else { piece.last().map_or(0, Raw::time_ns) };
        Event::TraceRecords(wire::TraceRecords {
            id: id.into(),
            records: STANDARD.encode(bytes),
            told_ns,
            hops: batch.hops.iter().map(missed).collect(),
            flows: if number == 0 { batch.flows.iter().map(flow).collect() } else { Vec::new() },
        })
    };
    pieces.into_iter().enumerate().map(message).collect()
}

fn event(id: &str, Upshot { report, flows }: Upshot) -> Event {
    let Report { start_ns, end_ns, ways, hops, hooks, sampled, cost, live } = report;
    let places = hops.len();
    Event::Trace(wire::Trace {
        id: id.into(),
        start_ns,
        end_ns,
        ways: ways.into_iter().map(|each| way(each, places)).collect(),
        hops: hops.iter().map(missed).collect(),
        hooks: hooks.map(|hooks| hooks.into_iter().map(wire_hook).collect()),
        sampled,
        cost,
        live,
        flows: flows.iter().map(flow).collect(),
    })
}

fn wire_hook(hook: Hook) -> wire::TraceHook {
    match hook {
        Hook::Ingress => wire::TraceHook::In,
        Hook::Egress => wire::TraceHook::Out,
    }
}

fn missed(loss: &HopLoss) -> wire::TraceMissed {
    let HopLoss { recorded, missed, untraced, counted: [counted_in, counted_out], gone } = *loss;
    wire::TraceMissed { recorded, missed, untraced, counted_in, counted_out, gone }
}

fn way(way: Way, places: usize) -> wire::TraceWay {
    let counts = way.counts;
    let step = |hop: partywall_alignment::HopCounts| wire::TraceStep {
        packets: hop.packets,
        bytes: hop.bytes,
        lost: hop.lost,
        astray: hop.astray,
        duplicates: hop.duplicates,
        reordered: hop.reordered,
        skipped: hop.skipped,
        stray: hop.stray,
        delay: delay(hop.delay),
    };
    wire::TraceWay {
        steps: counts.hops.into_iter().take(places).map(step).collect(),
        total: delay(counts.total),
        delivered: counts.delivered,
        unfinished: counts.unfinished,
        other: counts.other,
        alike: counts.alike,
        forced: way.forced,
        slowest: way.slowest.iter().map(packet).collect(),
        packets: way.packets.iter().map(packet).collect(),
    }
}

fn delay(delay: Delay) -> wire::TraceDelay {
    let Delay { mut counts, sum_ns, min_ns, max_ns, negative, negative_max_ns } = delay;
    wire::TraceDelay { histogram: counts.take(), sum_ns, min_ns, max_ns, negative, negative_max_ns }
}

fn packet(passage: &Passage) -> wire::TracePacket {
    let fate = match passage.fate {
        Fate::Delivered => wire::TraceFate::Delivered,
        Fate::Lost { .. } => wire::TraceFate::Lost,
        Fate::Astray { .. } => wire::TraceFate::Astray,
        Fate::Stray { .. } => wire::TraceFate::Stray,
        Fate::Other => wire::TraceFate::Other,
        Fate::Unfinished => wire::TraceFate::Unfinished,
    };
    wire::TracePacket {
        flow: hexadecimal(passage.flow),
        tag: passage.tag,
        length: passage.length,
        stream: passage.kind == Kind::Range,
        at_ns: passage.times[..passage.hops].to_vec(),
        fate,
    }
}

fn flow((flow, tuple): &(u64, Tuple)) -> wire::TraceFlow {
    let shown = |address: Ipv6Addr| address.to_ipv4_mapped().map_or_else(|| address.to_string(), |four| four.to_string());
    wire::TraceFlow {
        flow: hexadecimal(*flow),
        protocol: tuple.protocol,
        from: shown(tuple.from.0),
        from_port: tuple.from.1,
        to: shown(tuple.to.0),
        to_port: tuple.to.1,
    }
}

fn hexadecimal(flow: u64) -> String {
    format!("{flow:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_contract() {
        let sent = [Raw([1, u64::MAX, 3, 4]), Raw([5, 6, 7, 1 << 47])];
        let batch = Batch { records: sent.to_vec(), told_ns: 9, ..Batch::default() };
        let [Event::TraceRecords(event)] = &records("t", &batch)[..] else { panic!("one message") };
        let bytes = STANDARD.decode(&event.records).unwrap();
        assert_eq!((bytes.chunks_exact(RECORD_BYTES).map(raw).collect::<Vec<_>>(), event.told_ns), (sent.to_vec(), 9));
    }

    #[test]
    fn a_long_batch_is_cut_and_each_piece_tells_only_its_own_time() {
        let raws = (0..RECORDS_MAX as u64 + 5).map(|time_ns| Raw([time_ns, 0, 0, 0])).collect();
        let events = records("t", &Batch { records: raws, told_ns: 1_000_000, ..Batch::default() });
        let times_ns: Vec<u64> =
            events.iter().map(|event| if let Event::TraceRecords(event) = event { event.told_ns } else { 0 }).collect();
        assert_eq!(times_ns, [RECORDS_MAX as u64 - 1, 1_000_000]);
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let start = serde_json::json!({
            "id": "t", "hops": [], "horizon_ns": 0, "report_ns": 1, "slowest": 1, "packets": 1, "ring_bytes": 1,
            "only": { "address": "here" },
        });
        let wrong = settings(&serde_json::from_value(start).unwrap()).unwrap_err();
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("hops: 0 are out of range") && wrong[1].contains("horizon_ns") && wrong[2].contains("\"here\""));
    }
}
