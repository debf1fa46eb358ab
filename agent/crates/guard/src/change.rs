//! Limits how many interface changes the guard follows and reports. A tenant can change its own interface in a loop. That must
//! not delay the guard's work for other vifs, nor its reports. Pure; `guard` listens, checks places and writes the reports.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use partywall_bpf::Change;
use partywall_clock::Nanos;
use partywall_wire::GuardFinding;

/// Maximum distinct changes kept per namespace. Above it, all places of that namespace are checked instead.
const CHANGES_MAX: usize = 64;
/// Minimum time between two checks of one place that are caused by changes.
pub(crate) const LOOKS_APART_NS: Nanos = 100_000_000;
/// Interval at which repeated findings are reported as a count.
const COUNTED_EACH_NS: Nanos = 1_000_000_000;

/// Pending changes: each once, and at most [`CHANGES_MAX`] per namespace.
#[derive(Debug, Default)]
pub(crate) struct Changes(BTreeMap<usize, BTreeSet<Change>>);

impl Changes {
    pub fn add(&mut self, change: Change) {
        let place = change.place();
        let of_place = self.0.entry(place).or_default();
        if of_place.contains(&Change::Much { place }) {
            return;
        }
        of_place.insert(change);
        if of_place.len() > CHANGES_MAX {
            *of_place = BTreeSet::from([Change::Much { place }]);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self) -> impl Iterator<Item = Change> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}

/// Batches of changes in [`BATCHES_WITHIN_NS`] after which the listener does not pause.
const BATCHES_AT_ONCE: u32 = 16;
const BATCHES_WITHIN_NS: Nanos = 100_000_000;
/// Pause after each further batch, so that a flood of changes costs little.
const RESTS_NS: Nanos = 5_000_000;

/// When the listener for changes pauses. An interface is deleted, created and activated in one go, and must be hooked before it
/// sends, so a few changes are forwarded at once.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    batches: u32,
    until_ns: Nanos,
}

impl Rests {
    /// How long to pause after a batch of changes.
    pub fn after_batch_ns(&mut self, now: Nanos) -> Nanos {
        if now >= self.until_ns {
            (self.batches, self.until_ns) = (0, now + BATCHES_WITHIN_NS);
        }
        self.batches += 1;
        if self.batches <= BATCHES_AT_ONCE {
            0
        } else {
            RESTS_NS
        }
    }
}

/// Places to check because something changed there, in the order of the changes. Each place is checked at most once every
/// [`LOOKS_APART_NS`], unless there is a new interface, which has no hook yet.
#[derive(Debug)]
pub(crate) struct Looks {
    waiting: VecDeque<usize>,
    is_waiting: Vec<bool>,
    /// Earliest time at which a place may be checked again.
    from_ns: Vec<Nanos>,
}

impl Looks {
    pub fn new(places: usize) -> Self {
        Self { waiting: VecDeque::new(), is_waiting: vec![false; places], from_ns: vec![0; places] }
    }

    pub fn want(&mut self, place: usize) {
        if !std::mem::replace(&mut self.is_waiting[place], true) {
            self.waiting.push_back(place);
        }
    }

    /// As [`Looks::want`], without a delay.
    pub fn want_now(&mut self, place: usize) {
        self.want(place);
        self.from_ns[place] = 0;
    }

    /// The next place to check now.
    pub fn next(&mut self, now: Nanos) -> Option<usize> {
        let at = self.waiting.iter().position(|&place| self.from_ns[place] <= now)?;
        let place = self.waiting.remove(at)?;
        self.is_waiting[place] = false;
        self.from_ns[place] = now + LOOKS_APART_NS;
        Some(place)
    }

    /// When [`Looks::next`] has a place. None if no place is pending.
    pub fn due_ns(&self) -> Option<Nanos> {
        self.waiting.iter().map(|&place| self.from_ns[place]).min()
    }
}

/// A finding at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub kind: GuardFinding,
    /// Amount that `text` refers to. 0 if it counts nothing.
    pub amount: u64,
    /// What `amount` counts.
    pub unit: &'static str,
    pub text: String,
}

impl Finding {
    pub fn of(kind: GuardFinding, text: impl Into<String>) -> Self {
        Self { kind, amount: 0, unit: "", text: text.into() }
    }

    /// The text of the report. `times`: how often the finding occurred.
    fn report_text(&self, times: u64) -> String {
        let amount = if self.amount == 0 { String::new() } else { format!("{} {} ", self.amount, self.unit) };
        let often = if times > 1 { format!(" ({times} times in the last second)") } else { String::new() };
        format!("{amount}{}{often}", self.text)
    }
}

#[derive(Debug)]
struct Repeat {
    reported_ns: Nanos,
    times: u64,
    /// The latest finding, with the sum of all amounts.
    finding: Finding,
}

/// Findings of one kind and unit at one place. The first is reported at once; repeats are counted and reported every second.
#[derive(Debug, Default)]
pub(crate) struct Repeats(BTreeMap<(usize, GuardFinding, &'static str), Repeat>);

impl Repeats {
    /// Returns the text to report at once, if any.
    pub fn add(&mut self, place: usize, finding: Finding, now: Nanos) -> Option<String> {
        match self.0.entry((place, finding.kind, finding.unit)) {
            Entry::Vacant(free) => {
                let text = finding.report_text(1);
                free.insert(Repeat { reported_ns: now, times: 0, finding: Finding { amount: 0, ..finding } });
                Some(text)
            }
            Entry::Occupied(mut known) => {
                let repeat = known.get_mut();
                repeat.times += 1;
                repeat.finding = Finding { amount: repeat.finding.amount + finding.amount, ..finding };
                None
            }
        }
    }

    /// Returns the repeated findings that are due for a report.
    pub fn due(&mut self, now: Nanos) -> Vec<(usize, GuardFinding, String)> {
        let mut due = Vec::new();
        self.0.retain(|&(place, kind, _), repeat| {
            if now < repeat.reported_ns + COUNTED_EACH_NS {
                return true;
            }
            let again = repeat.times > 0;
            if again {
                due.push((place, kind, repeat.finding.report_text(repeat.times)));
            }
            (repeat.reported_ns, repeat.times, repeat.finding.amount) = (now, 0, 0);
            again
        });
        due
    }

    /// Drops the findings of a place, because they do not apply to the interface that it is moved to.
    pub fn forget(&mut self, place: usize) {
        self.0.retain(|&(known, ..), _| known != place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn an_interface_that_is_replaced_is_seen_at_once_and_a_flood_of_changes_every_few_milliseconds() {
        let mut rests = Rests::default();
        let (mut now, mut batches) = (0, 0);
        while now < SECOND {
            let rests_ns = rests.after_batch_ns(now);
            assert!(batches >= BATCHES_AT_ONCE || rests_ns == 0, "batch {batches}");
            (now, batches) = (now + 10_000 + rests_ns, batches + 1);
        }
        let most = SECOND / RESTS_NS + SECOND / BATCHES_WITHIN_NS * u64::from(BATCHES_AT_ONCE);
        assert!(u64::from(batches) <= most, "{batches} batches in a second");
        assert_eq!(rests.after_batch_ns(2 * SECOND), 0);
    }

    #[test]
    fn a_change_reported_a_thousand_times_is_followed_once() {
        let mut changes = Changes::default();
        (0..1000).for_each(|_| changes.add(Change::Unhooked { place: 0, index: 7 }));
        assert_eq!(changes.take().collect::<Vec<_>>(), [Change::Unhooked { place: 0, index: 7 }]);
        assert!(changes.is_empty());
    }

    #[test]
    fn too_many_changes_in_one_namespace_do_not_displace_those_of_another() {
        let mut changes = Changes::default();
        changes.add(Change::Unhooked { place: 1, index: 2 });
        for index in 0..100_000 {
            changes.add(Change::Interface { place: 0, index, name: format!("new{index}") });
        }
        assert_eq!(changes.take().collect::<Vec<_>>(), [Change::Much { place: 0 }, Change::Unhooked { place: 1, index: 2 }]);
    }

    #[test]
    fn a_place_that_changes_constantly_is_checked_ten_times_a_second_and_does_not_starve_others() {
        let mut looks = Looks::new(2);
        let mut looked = [0; 2];
        for now in (0..SECOND).step_by(1_000_000) {
            looks.want(0);
            if now == SECOND / 2 {
                looks.want(1);
            }
            while let Some(place) = looks.next(now) {
                looked[place] += 1;
            }
        }
        assert_eq!(looked, [10, 1]);
        assert_eq!(looks.due_ns(), Some(SECOND));
    }

    #[test]
    fn a_new_interface_is_looked_at_though_its_place_was_looked_at_just_before() {
        let mut looks = Looks::new(2);
        looks.want(0);
        assert_eq!(looks.next(SECOND), Some(0));
        looks.want(0);
        assert_eq!(looks.next(SECOND + 1), None);
        looks.want_now(0);
        assert_eq!((looks.next(SECOND + 1), looks.next(SECOND + 1)), (Some(0), None));
    }

    #[test]
    fn a_repair_is_reported_at_once_and_then_as_a_count_each_second() {
        let mut repeats = Repeats::default();
        let mut reported = Vec::new();
        for now in (0..3 * SECOND).step_by(100_000_000) {
            reported.extend(repeats.add(4, Finding::of(GuardFinding::Repaired, "put back"), now));
            reported.extend(repeats.due(now).into_iter().map(|(_, _, text)| text));
        }
        assert_eq!(reported, ["put back", "put back (10 times in the last second)", "put back (10 times in the last second)"]);
        assert_eq!(repeats.due(3 * SECOND).len(), 1, "what was counted last");
        assert!(repeats.due(4 * SECOND).is_empty());
        assert_eq!(repeats.add(4, Finding::of(GuardFinding::Repaired, "put back"), 5 * SECOND).as_deref(), Some("put back"));
    }

    #[test]
    fn amounts_are_summed_but_bytes_not_with_packets() {
        let mut repeats = Repeats::default();
        let above = |amount, unit| Finding { kind: GuardFinding::Exceeded, amount, unit, text: "above the ceiling".into() };
        assert_eq!(repeats.add(0, above(5, "bytes"), 0).as_deref(), Some("5 bytes above the ceiling"));
        assert_eq!(repeats.add(0, above(1, "packets"), 0).as_deref(), Some("1 packets above the ceiling"));
        for amount in [3, 4] {
            assert_eq!(repeats.add(0, above(amount, "bytes"), 1), None);
        }
        assert_eq!(repeats.add(0, above(2, "packets"), 1), None);
        let reported: Vec<String> = repeats.due(SECOND).into_iter().map(|(.., text)| text).collect();
        assert_eq!(reported, ["7 bytes above the ceiling (2 times in the last second)", "2 packets above the ceiling"]);
    }
}
