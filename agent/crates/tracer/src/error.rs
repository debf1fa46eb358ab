//! Why a trace cannot start, in words that name the hop and the remedy.

use thiserror::Error;

/// Why a trace cannot start.
#[derive(Debug, Error)]
pub enum TraceError {
    /// What is asked for makes no sense here; all of it at once.
    #[error("{}", .0.join("\n"))]
    Asked(Vec<String>),
    /// The agent has no programs.
    #[error(transparent)]
    Absent(#[from] partywall_bpf::Absent),
    /// The kernel refuses.
    #[error(
        "{what}: {why}; tracing needs root (CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN) and a kernel with eBPF at tc (CONFIG_NET_CLS_BPF)"
    )]
    Refused {
        /// What was tried.
        what: String,
        /// What the kernel said.
        why: String,
    },
}

impl TraceError {
    pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(&dyn std::error::Error) -> Self {
        let what = what.into();
        move |error| Self::Refused { what, why: innermost(error) }
    }
}

/// The last cause in a chain of errors says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let whole = error.to_string();
    let cause = last.to_string();
    if whole.contains(&cause) {
        whole
    } else {
        format!("{whole}: {cause}")
    }
}
