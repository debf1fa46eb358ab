//! Golden messages, which the controller's tests read too: the agent accepts the controller's requests and writes the expected events.

use std::collections::HashSet;

use partywall_wire::{self as wire, Method};
use serde_json::Value;

const REQUESTS: &str = include_str!("../../../../schema/golden/requests.jsonl");
const EVENTS: &str = include_str!("../../../../schema/golden/events.jsonl");

#[test]
fn every_request_of_the_controller_is_accepted() {
    for line in REQUESTS.lines() {
        let request = wire::decode(line.as_bytes()).unwrap();
        let method = Method::find(&request.method).unwrap_or_else(|| panic!("{}: no such method", request.method));
        let read = method.read(request.params.clone()).unwrap_or_else(|error| panic!("{}: {error}", request.params));
        assert_eq!(method.read(read.clone()).unwrap(), read, "written as it is read");
    }
}

#[test]
fn every_method_has_a_golden_request() {
    let golden: HashSet<String> = REQUESTS.lines().map(|line| wire::decode(line.as_bytes()).unwrap().method).collect();
    let without: Vec<&str> = wire::METHODS.iter().map(|method| method.name).filter(|name| !golden.contains(*name)).collect();
    assert!(without.is_empty(), "add a line to schema/golden/requests.jsonl for {without:?}");
}

#[test]
fn every_event_is_serialised_as_the_golden_one() {
    for line in EVENTS.lines() {
        let event: wire::Event = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), serde_json::from_str::<Value>(line).unwrap());
    }
}
