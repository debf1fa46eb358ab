#![forbid(unsafe_code)]
//! `partywall-agent`: what must run next to the metal or inside a sandbox. It opens no port and dies with its stream.

mod capability;
mod command;
mod dispatch;
mod guard;
mod methods;
mod monitor;
mod outbox;
mod refusal;
mod resident;
mod session;
mod stream;
mod trace;
mod verify;
mod workload;

use std::hash::Hasher;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use partywall_wire::Capability;

use crate::capability::Only;
use crate::dispatch::ClockOwner;
use crate::stream::Patient;

/// The part of Partywall that runs next to the metal or inside a sandbox. People use `partywall`; this is what it starts.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Answer JSON-RPC requests on standard input, one a line, until it ends.
    Serve {
        /// CPUs to run on, for example 0,2-3; all that are allowed if not given.
        #[arg(long, value_parser = cpus)]
        cpus: Option<Cpus>,
        /// End when the process that started this one ends.
        #[arg(long)]
        die_with_parent: bool,
        /// This machine is a guest of Partywall's own, whose clock may be set.
        #[arg(long, conflicts_with = "own_clock")]
        guest: bool,
        /// The times that this agent tells may be set by the controller; the machine's own clock is left as it is.
        #[arg(long)]
        own_clock: bool,
        /// End when the controller has said nothing for so many seconds: it may be gone without a word.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        patience: Option<u64>,
        /// Refuse all that these do not need, by name; for example probe,monitor.
        #[arg(long, value_name = "CAPABILITIES", value_delimiter = ',', value_parser = capability::parser())]
        only: Option<Vec<Capability>>,
    },
    /// Outlive a guard: wait for its death, and put queues where TCP needs them then. It says on standard input where.
    Heir,
    /// Take hooks off interfaces: what a tracer that was killed left behind. Prints what was removed, one a line.
    Unhook {
        /// Begins the names of the hooks, after the prefix that all of Partywall's have.
        prefix: String,
        /// NAMESPACE=INTERFACE; the namespace is a name, a process number or a path, or empty for this one.
        places: Vec<String>,
    },
    /// Be the first process of a guest: make the machine ready, serve its controller, then power off.
    Init {
        /// Terminal that is the stream to the controller, where there is no virtio port.
        #[arg(long)]
        console: Option<PathBuf>,
        /// The address of its network interface, for example 192.0.2.7/24.
        #[arg(long, requires = "gateway")]
        address: Option<String>,
        /// Where its network leads on.
        #[arg(long, requires = "address")]
        gateway: Option<Ipv4Addr>,
    },
    /// Be at the other end of a network kernel until standard input ends. Prints the address it listens on.
    Peer {
        /// Address and port to listen on; port 0 for one of the system's choice.
        #[arg(long)]
        listen: SocketAddr,
        /// Stay until killed, also when standard input ends.
        #[arg(long)]
        stay: bool,
        /// The kernel.
        kernel: String,
        /// Its parameters, as JSON.
        #[arg(default_value = "{}")]
        params: String,
    },
    /// Print a checksum of a file's content. Only this version of the agent gives the same one.
    Digest {
        /// The file.
        file: PathBuf,
    },
    /// Write a known pattern again and again, and count the pages that are not as written. Runs until it is killed.
    Verify {
        /// Size of the pattern.
        #[arg(long)]
        bytes: usize,
        /// Bytes checked and written each second, at most.
        #[arg(long)]
        rate: f64,
        /// Keep the pattern in this file instead of in memory.
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Say what is wrong with a load program, which is read from standard input as JSON: each mistake on a line, with its key.
    CheckLoad,
    /// Print what the host is and what it lacks, as JSON.
    Facts {
        /// Folder that holds the host's proc, sys and dev.
        #[arg(long, default_value = "/")]
        root: PathBuf,
    },
    /// Print how fast this processor's time-stamp counter counts, in kHz; nothing where it has none.
    Tsc,
    /// Print what every kernel says of itself, as JSON.
    Catalogue,
    /// Print what every counter of the monitor says of itself, as JSON.
    Counters,
    /// Print the JSON Schema of the messages.
    Schema,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpus(Vec<usize>);

/// Reads `0,2-3`.
fn cpus(text: &str) -> Result<Cpus, String> {
    let number = |part: &str| part.trim().parse::<usize>().map_err(|_| format!("{part:?} is no CPU number; write for example 0,2-3"));
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => all.extend(number(first)?..=number(last)?),
            None => all.push(number(part)?),
        }
    }
    if all.is_empty() || all.iter().any(|&cpu| cpu >= 1024) {
        return Err(format!("{text:?} names no CPU from 0 to 1023; write for example 0,2-3"));
    }
    Ok(Cpus(all))
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().what {
        What::Serve { cpus, die_with_parent, guest, own_clock, patience, only } => {
            let clock = if guest {
                ClockOwner::Machine
            } else if own_clock {
                ClockOwner::Agent
            } else {
                ClockOwner::Host
            };
            serve(cpus, die_with_parent, clock, patience.map(Duration::from_secs), Only(only))
        }
        What::Heir => partywall_guard::inherit(std::io::stdin().lock()).map_err(|error| error.to_string()),
        What::Unhook { prefix, places } => unhook(&prefix, &places),
        What::Init { console, address, gateway } => init(console.as_deref(), address.as_deref().zip(gateway)),
        What::Peer { listen, stay, kernel, params } => peer(listen, stay, &kernel, &params),
        What::Digest { file } => digest(&file),
        What::Verify { bytes, rate, file } => verify::run(bytes, rate, file.as_deref()),
        What::CheckLoad => check_load(),
        What::Facts { root } => print(&serde_json::json!(dispatch::facts_of(&root))),
        What::Tsc => partywall_sys::processor::tsc_khz().map_or(Ok(()), |khz| print(&khz.into())),
        What::Catalogue => print(&dispatch::catalogue()),
        What::Counters => print(&serde_json::json!(partywall_monitor::catalogue())),
        What::Schema => print(&methods::schema()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "partywall-agent: {message}");
            ExitCode::from(2)
        }
    }
}

/// Prints what is wrong, for that is what was asked for; an error is a program that cannot be read.
fn check_load() -> Result<(), String> {
    let program = serde_json::from_reader(std::io::stdin().lock()).map_err(|error| format!("no load program: {error}"))?;
    match partywall_load::check(program) {
        Ok(()) => Ok(()),
        Err(wrong) => writeln!(std::io::stdout(), "{wrong}").map_err(|error| error.to_string()),
    }
}

/// Ends with the machine, or with an error where there is no machine to end.
fn init(console: Option<&Path>, network: Option<(&str, Ipv4Addr)>) -> Result<(), String> {
    if std::process::id() != 1 {
        return Err("init is for the first process of a guest; people use partywall vm".into());
    }
    let network = network.map(|(address, gateway)| partywall_init::Network::parse(address, gateway)).transpose()?;
    let outcome = partywall_init::run(console, network).map_err(|error| error.to_string());
    if let Err(message) = &outcome {
        let _ = writeln!(std::io::stderr(), "partywall-init: {message}");
    }
    partywall_init::power_off();
    outcome
}

fn serve(cpus: Option<Cpus>, die_with_parent: bool, clock: ClockOwner, patience: Option<Duration>, only: Only) -> Result<(), String> {
    if die_with_parent {
        partywall_sys::process::die_with_parent().map_err(|e| format!("--die-with-parent: {e}"))?;
    }
    if let Some(Cpus(cpus)) = cpus {
        partywall_sys::affinity::pin(&cpus).map_err(|e| format!("--cpus {cpus:?}: {e}; are they online and allowed here?"))?;
    }
    if clock == ClockOwner::Machine {
        // A workload that fills the machine's one CPU must not keep the controller waiting for the time.
        partywall_sys::priority::go_first().map_err(|e| format!("--guest: {e}; it is for machines that Partywall made"))?;
    }
    let input = Patient::stdin(patience).map_err(|e| format!("standard input: {e}"))?;
    session::serve(BufReader::new(input), std::io::stdout(), clock, only).map_err(|e| e.to_string())
}

/// Listens from when it has printed where, which is how who started it knows.
fn peer(listen: SocketAddr, stay: bool, kernel: &str, params: &str) -> Result<(), String> {
    partywall_sys::process::die_with_parent().map_err(|e| format!("dying with the parent: {e}"))?;
    let params = serde_json::from_str(params).map_err(|e| format!("{params:?} is no object of parameters: {e}"))?;
    let address = partywall_kernels::peers::listen(listen, kernel, &params).map_err(|e| e.to_string())?;
    writeln!(std::io::stdout(), "{address}").map_err(|e| e.to_string())?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map_err(|e| e.to_string())?;
    if stay {
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn digest(file: &Path) -> Result<(), String> {
    let content = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&content);
    writeln!(std::io::stdout(), "{:016x}", hasher.finish()).map_err(|e| e.to_string())
}

fn unhook(prefix: &str, places: &[String]) -> Result<(), String> {
    for place in places {
        let (namespace, interface) = place.split_once('=').ok_or_else(|| format!("{place:?}: write NAMESPACE=INTERFACE"))?;
        let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
        for removed in partywall_tracer::unhook(namespace, interface, prefix) {
            writeln!(std::io::stdout(), "hook {removed} on {place}").map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

fn print(value: &serde_json::Value) -> Result<(), String> {
    writeln!(std::io::stdout(), "{value:#}").map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_of_cpus_are_read() {
        assert_eq!(cpus("0,2-4"), Ok(Cpus(vec![0, 2, 3, 4])));
        assert!(cpus("0,x").unwrap_err().contains("\"x\""));
        assert!(cpus("5-4").is_err());
        assert!(cpus("9999").is_err());
    }
}
