//! Runs a kernel at full speed for a second and prints its rate and facts:
//! `cargo run --release --example rate -- memory-copy '{"stores": "non_temporal"}' [seconds]`
#![allow(clippy::print_stdout, reason = "an example that a person runs; nothing reads its output")]

use std::env;
use std::error::Error;

use partywall_clock::{self as clock, Nanos};
use partywall_kernels::{find, Environment, Figure, Params, Sink};

#[derive(Default)]
struct Own(Vec<Nanos>);

impl Sink for Own {
    fn latency(&mut self, value_ns: Nanos) {
        self.0.push(value_ns);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let name = arguments.first().ok_or("give the name of a kernel")?;
    let params: Params = serde_json::from_str(arguments.get(1).map_or("{}", String::as_str))?;
    let seconds: f64 = arguments.get(2).map_or(Ok(1.0), |text| text.parse())?;
    let environment = Environment { root: "/".into(), work_dir: env::temp_dir(), seed: 1, thread: 0, threads: 1 };
    let entry = find(name)?;
    let mut kernel = (entry.build)(&params, &environment)?;
    let mut own = Own::default();
    let (mut work, mut steps) = (0.0, 0_u32);
    let start = clock::monotonic();
    let mut end = start;
    while (end - start) as f64 / 1e9 < seconds {
        work += kernel.step(&mut own)?;
        steps += 1;
        end = clock::monotonic();
    }
    let rate = work / ((end - start) as f64 / 1e9);
    match (entry.info)().figure {
        Figure::Rate { label, divisor } => println!("{name}: {:.2} {label}", rate / divisor),
        Figure::PerOperation { label } => println!("{name}: {:.2} {label}", 1e9 / rate),
    }
    println!("a step took {:.1} us", (end - start) as f64 / 1e3 / f64::from(steps));
    own.0.sort_unstable();
    if let (Some(median), Some(most)) = (own.0.get(own.0.len() / 2), own.0.last()) {
        println!("latency: median {median} ns, most {most} ns");
    }
    println!("facts: {}", serde_json::Value::Object(kernel.facts()));
    Ok(())
}
