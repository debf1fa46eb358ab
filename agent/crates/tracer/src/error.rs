//! Why a trace cannot start. Messages name the hop and the remedy.

use thiserror::Error;

/// Why a trace cannot start.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The request makes no sense here; all mistakes at once.
    #[error("{}", .0.join("\n"))]
    Request(Vec<String>),
    /// The agent has no programs.
    #[error(transparent)]
    Absent(#[from] partywall_bpf::Absent),
    /// The kernel refuses.
    #[error(
        "{what}: {why}; tracing needs root (CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN) and a kernel with eBPF at tc (CONFIG_NET_CLS_BPF)"
    )]
    Refused {
        /// The attempted operation.
        what: String,
        /// The kernel's error.
        why: String,
    },
}

impl TraceError {
    pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(&dyn std::error::Error) -> Self {
        let what = what.into();
        move |error| Self::Refused { what, why: innermost(error) }
    }
}

/// The innermost cause of a chain of errors is the most specific.
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
