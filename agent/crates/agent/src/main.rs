#![forbid(unsafe_code)]
//! `partywall-agent`: the part of Partywall that runs on a host or inside a sandbox. It opens no port and ends with its stream.

mod capability;
mod command;
mod dispatch;
mod guard;
mod lanes;
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

/// The part of Partywall that runs on a host or inside a sandbox. The `partywall` command starts it; users need not run it.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Answer JSON-RPC requests from standard input, one per line, until end of input.
    Serve {
        /// CPUs to run on, for example 0,2-3. Default: all permitted CPUs.
        #[arg(long, value_parser = cpus)]
        cpus: Option<Cpus>,
        /// Exit when the parent process exits.
        #[arg(long)]
        die_with_parent: bool,
        /// This machine is a guest created by Partywall, and its clock may be adjusted.
        #[arg(long, conflicts_with = "own_clock")]
        guest: bool,
        /// Let the controller adjust the times that this agent reports. The machine's clock is not changed.
        #[arg(long)]
        own_clock: bool,
        /// Exit after this many seconds without a message from the controller.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        patience: Option<u64>,
        /// Permit only these capabilities, for example probe,monitor.
        #[arg(long, value_name = "CAPABILITIES", value_delimiter = ',', value_parser = capability::parser())]
        only: Option<Vec<Capability>>,
    },
    /// Fallback process of a guard: when the guard dies, add the queues that TCP needs. Reads their places from standard input.
    GuardFallback,
    /// Remove hooks that a killed tracer left on interfaces. Prints one removed hook per line.
    Unhook {
        /// Prefix of the hooks' names, after the prefix common to all hooks of Partywall.
        prefix: String,
        /// NAMESPACE=INTERFACE. The namespace is a name, a process ID or a path. If it is empty, the current namespace is used.
        places: Vec<String>,
    },
    /// Run as the first process of a guest: set up the machine, serve its controller, then power off.
    Init {
        /// Terminal that carries the stream to the controller, for a machine without a virtio port.
        #[arg(long)]
        console: Option<PathBuf>,
        /// Address of the guest's network interface, for example 192.0.2.7/24.
        #[arg(long, requires = "gateway")]
        address: Option<String>,
        /// Default gateway of the guest.
        #[arg(long, requires = "address")]
        gateway: Option<Ipv4Addr>,
    },
    /// Serve as the remote end of a network kernel until end of standard input. Prints the listening address.
    Peer {
        /// Address and port to listen on. With port 0, the system chooses the port.
        #[arg(long)]
        listen: SocketAddr,
        /// Run until killed, even after standard input ends.
        #[arg(long)]
        stay: bool,
        /// Name of the kernel.
        kernel: String,
        /// Parameters of the kernel, as JSON.
        #[arg(default_value = "{}")]
        params: String,
    },
    /// Print a checksum of a file's content. Checksums of different agent versions are not comparable.
    Digest {
        /// File to read.
        file: PathBuf,
    },
    /// Write a known pattern repeatedly, and count pages that do not match it. Runs until killed.
    Verify {
        /// Size of the pattern.
        #[arg(long)]
        bytes: usize,
        /// Maximum bytes to check and write per second.
        #[arg(long)]
        rate: f64,
        /// Keep the pattern in this file instead of memory.
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Check a load program, read from standard input as JSON. Prints one error per line, with its key.
    CheckLoad,
    /// Print facts about the host and its missing capabilities, as JSON.
    Facts {
        /// Directory that contains the host's proc, sys and dev.
        #[arg(long, default_value = "/")]
        root: PathBuf,
    },
    /// Print the frequency of the processor's time-stamp counter in kHz. Prints nothing if there is no such counter.
    Tsc,
    /// Print the descriptions of all kernels, as JSON.
    Catalogue,
    /// Print the descriptions of all monitor counters, as JSON.
    Counters,
    /// Print the JSON Schema of the messages.
    Schema,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cpus(Vec<usize>);

/// Parses a list of CPUs such as `0,2-3`.
fn cpus(text: &str) -> Result<Cpus, String> {
    let number = |part: &str| part.trim().parse::<usize>().map_err(|_| format!("{part:?} is not a CPU number; write for example 0,2-3"));
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => all.extend(number(first)?..=number(last)?),
            None => all.push(number(part)?),
        }
    }
    if all.is_empty() || all.iter().any(|&cpu| cpu >= 1024) {
        return Err(format!("{text:?} contains no CPU, or one above 1023; write for example 0,2-3"));
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
        What::GuardFallback => partywall_guard::run_fallback(std::io::stdin().lock()).map_err(|error| error.to_string()),
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

/// Prints the errors of a load program. Returns an error only if the program cannot be read.
fn check_load() -> Result<(), String> {
    let program =
        serde_json::from_reader(std::io::stdin().lock()).map_err(|error| format!("standard input is not a load program: {error}"))?;
    match partywall_load::check(program) {
        Ok(()) => Ok(()),
        Err(wrong) => writeln!(std::io::stdout(), "{wrong}").map_err(|error| error.to_string()),
    }
}

/// Returns only on error: on success the machine powers off.
fn init(console: Option<&Path>, network: Option<(&str, Ipv4Addr)>) -> Result<(), String> {
    if std::process::id() != 1 {
        return Err("init must be process 1 of a guest; to start a guest, use a sandbox with backend vm".into());
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
        partywall_sys::affinity::pin(&cpus)
            .map_err(|e| format!("--cpus {cpus:?}: {e}; give CPUs that are online and allowed for this process"))?;
    }
    if clock == ClockOwner::Machine {
        // A workload that fills the machine's only CPU must not delay answers about the time.
        partywall_sys::priority::go_first().map_err(|e| format!("--guest: {e}; use it only in guests that Partywall started"))?;
    }
    let input = Patient::stdin(patience).map_err(|e| format!("standard input: {e}"))?;
    session::serve(BufReader::new(input), std::io::stdout(), clock, only).map_err(|e| e.to_string())
}

/// Prints the listening address when it is ready, so that the parent process knows when to connect.
fn peer(listen: SocketAddr, stay: bool, kernel: &str, params: &str) -> Result<(), String> {
    partywall_sys::process::die_with_parent().map_err(|e| format!("ending with the parent process: {e}"))?;
    let params = serde_json::from_str(params).map_err(|e| format!("parameters {params:?} are not a JSON object: {e}"))?;
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

/// Tries all places, and then fails if hooks may be left at one.
fn unhook(prefix: &str, places: &[String]) -> Result<(), String> {
    let mut left = Vec::new();
    for place in places {
        let (namespace, interface) =
            place.split_once('=').ok_or_else(|| format!("{place:?} is not an interface; write NAMESPACE=INTERFACE"))?;
        let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
        match partywall_tracer::unhook(namespace, interface, prefix) {
            Ok(every) => {
                every.iter().try_for_each(|one| writeln!(std::io::stdout(), "hook {one} on {place}")).map_err(|e| e.to_string())?;
            }
            Err(error) => left.push(format!("{place}: {error}")),
        }
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err(left.join("; "))
    }
}

fn print(value: &serde_json::Value) -> Result<(), String> {
    writeln!(std::io::stdout(), "{value:#}").map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_lists_and_ranges_of_cpus() {
        assert_eq!(cpus("0,2-4"), Ok(Cpus(vec![0, 2, 3, 4])));
        assert!(cpus("0,x").unwrap_err().contains("\"x\""));
        assert!(cpus("5-4").is_err());
        assert!(cpus("9999").is_err());
    }
}
