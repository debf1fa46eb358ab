//! Whether the host is itself a guest, and whether it has the device to have guests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::survey::{field, Question, Survey};

/// What is known of virtualisation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VirtualisationFacts {
    /// Whether the CPU says that a hypervisor is below.
    pub guest: Option<bool>,
    /// Who made the machine, as its firmware says.
    pub vendor: Option<String>,
    /// The machine's product name, as its firmware says.
    pub product: Option<String>,
    /// `/sys/hypervisor/type`, such as `xen`.
    pub hypervisor_type: Option<String>,
    /// Whether `/dev/kvm` is there. No proof that guests run: only starting one shows that.
    pub dev_kvm: bool,
}

pub(crate) fn read(survey: &mut Survey) -> VirtualisationFacts {
    VirtualisationFacts {
        guest: guest(survey),
        vendor: dmi(survey, "machine vendor", "sys_vendor"),
        product: dmi(survey, "machine product", "product_name"),
        hypervisor_type: survey.optional("/sys/hypervisor/type"),
        dev_kvm: survey.exists("/dev/kvm"),
    }
}

fn guest(survey: &mut Survey) -> Option<bool> {
    let question = Question {
        what: "whether the host is a guest",
        cost: "steal of 0 cannot be told from steal that is not reported",
        remedy: "only x86 says it in /proc/cpuinfo; the firmware's product name may tell",
    };
    survey.ask(question, "/proc/cpuinfo", |text| Some(field(text, "flags")?.split_whitespace().any(|flag| flag == "hypervisor")))
}

fn dmi(survey: &mut Survey, what: &'static str, file: &str) -> Option<String> {
    let question = Question { what, cost: "the report cannot name the machine", remedy: "none where the firmware has no DMI tables" };
    survey.ask(question, &format!("/sys/class/dmi/id/{file}"), |text| (!text.is_empty()).then(|| text.to_owned()))
}
