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
    /// Records are written without locks, which needs softirqs that are not interrupted by others of their CPU.
    #[error("this kernel has PREEMPT_RT, so packets' hooks may interrupt each other and lose records unseen; boot a kernel without it")]
    Realtime,
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
    /// `realtime`: the content of `/sys/kernel/realtime`, which only kernels with `PREEMPT_RT` have.
    pub(crate) fn of_realtime(realtime: Option<&str>) -> Option<Self> {
        (realtime?.trim() == "1").then_some(Self::Realtime)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_whose_softirqs_can_be_interrupted_is_refused() {
        assert!(matches!(TraceError::of_realtime(Some("1\n")), Some(TraceError::Realtime)));
        assert!(TraceError::of_realtime(None).is_none() && TraceError::of_realtime(Some("0\n")).is_none());
    }
}
