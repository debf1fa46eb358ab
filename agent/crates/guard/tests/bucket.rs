//! Tests the program's bucket, compiled for the host, under threads that race for it. Skipped with the reason if there is no clang.

use std::path::Path;
use std::process::Command;

const THREADS: u64 = 4;
/// Burst of the bucket, in packets.
const BURST: u64 = 100;

/// Numbers of packets that passed and that were charged, and how often the latest departure was not the latest, with at most `tries`
/// compare-and-exchange attempts per packet.
fn raced(tries: u32, packets: u64, hold: u64) -> Option<[u64; 3]> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::env::temp_dir().join(format!("partywall-bucket-{}-{tries}-{packets}-{hold}", std::process::id()));
    let mut clang = Command::new(std::env::var("PARTYWALL_CLANG").unwrap_or_else(|_| "clang".into()));
    clang.args(["-O2", "-Wall", "-Wno-pass-failed", "-Werror", "-pthread", &format!("-DTRIES={tries}"), "-I"]);
    clang.arg(here.join("../../bpf")).arg(here.join("tests/bucket.c")).arg("-o").arg(&program);
    match clang.output() {
        Ok(ran) if ran.status.success() => {}
        Ok(ran) => panic!("{}", String::from_utf8_lossy(&ran.stderr)),
        Err(why) => {
            eprintln!("skipped: clang: {why}");
            return None;
        }
    }
    let ran = Command::new(&program).args([packets.to_string(), hold.to_string()]).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    let mut numbers = said.split_whitespace().map(|number| number.parse().unwrap());
    Some(std::array::from_fn(|_| numbers.next().unwrap()))
}

#[test]
fn a_conforming_packet_passes_however_often_other_cpus_win_the_race() {
    for tries in [0, 1, 16] {
        let packets = 200_000;
        let Some([passed, charged, _]) = raced(tries, packets, THREADS * packets) else { return };
        assert_eq!((passed, charged), (THREADS * packets, THREADS * packets), "passed and charged, {tries} tries");
    }
}

#[test]
fn the_latest_departure_never_goes_back() {
    let Some([passed, _, behind]) = raced(1000, 200_000, THREADS * 200_000) else { return };
    assert_eq!((passed, behind), (THREADS * 200_000, 0));
}

#[test]
fn a_packet_that_loses_the_race_is_charged_and_at_most_one_per_cpu_exceeds_the_limit() {
    for tries in [0, 1, 16] {
        let Some([passed, charged, _]) = raced(tries, 200_000, 0) else { return };
        assert_eq!(passed, charged, "{tries} tries");
        // A packet may put the bucket into debt.
        assert!((BURST + 1..=BURST + THREADS).contains(&passed), "{passed} passed, {tries} tries");
    }
}
