#![no_main]
//! Readers of what servers say, HTTP/1.1 and HTTP/2, on whatever libFuzzer makes of a few responses: they are read or refused, and it
//! makes no difference in which pieces they come.

use libfuzzer_sys::fuzz_target;
use partywall_load::testing::{check_http2, check_response};

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let size = usize::from(first >> 2) + 1;
    match first & 3 {
        0 => check_http2(rest, size),
        how => check_response(rest, size, how == 1),
    }
});
