//! The golden messages, which the controller's tests read too: what it sends is understood, what the agent sends is written so.

use partywall_wire as wire;
use serde::de::DeserializeOwned;
use serde_json::Value;

const REQUESTS: &str = include_str!("../../../../schema/golden/requests.jsonl");
const EVENTS: &str = include_str!("../../../../schema/golden/events.jsonl");

fn understood<T: DeserializeOwned>(params: &Value) {
    T::deserialize(params).unwrap_or_else(|error| panic!("{params}: {error}"));
}

#[test]
fn every_request_of_the_controller_is_understood() {
    for line in REQUESTS.lines() {
        let request = wire::decode(line.as_bytes()).unwrap();
        match request.method.as_str() {
            "hello" => understood::<wire::Hello>(&request.params),
            "facts" => {}
            "memory.check" => understood::<wire::MemoryCheck>(&request.params),
            "clock.adjust" => understood::<wire::ClockAdjust>(&request.params),
            "workload.start" => understood::<wire::Start>(&request.params),
            "workload.calibrate" => understood::<wire::Calibrate>(&request.params),
            "workload.schedule" => understood::<wire::Schedule>(&request.params),
            "workload.stop" | "monitor.stop" | "trace.close" | "trace.stop" | "guard.stop" => understood::<wire::Stop>(&request.params),
            "monitor.start" => understood::<wire::MonitorStart>(&request.params),
            "monitor.schedule" => understood::<wire::MonitorAt>(&request.params),
            "guard.start" => understood::<wire::GuardStart>(&request.params),
            "guard.remove" => understood::<wire::GuardRemove>(&request.params),
            "trace.start" => understood::<wire::trace::TraceStart>(&request.params),
            "trace.feed" => understood::<wire::trace::TraceFeed>(&request.params),
            "trace.sample" => understood::<wire::trace::TraceSample>(&request.params),
            other => panic!("{other} is in the golden requests and not in this test"),
        }
    }
}

#[test]
fn every_event_is_written_as_the_golden_one() {
    for line in EVENTS.lines() {
        let event: wire::Event = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), serde_json::from_str::<Value>(line).unwrap());
    }
}
