//! What the firmware says of the machine, whether it is a guest, and whether it has the device to run guests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::survey::{field, Question, Survey};

/// Facts about virtualisation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VirtualisationFacts {
    /// Whether the CPU reports a hypervisor.
    pub guest: Option<bool>,
    /// Manufacturer of the machine, as reported by its firmware.
    pub vendor: Option<String>,
    /// Product name of the machine, as reported by its firmware.
    pub product: Option<String>,
    /// The firmware: its vendor, version and date.
    #[serde(default)]
    pub firmware: Option<String>,
    /// `/sys/hypervisor/type`, such as `xen`.
    pub hypervisor_type: Option<String>,
    /// Whether `/dev/kvm` exists. That does not prove that guests run.
    pub dev_kvm: bool,
}

pub(crate) fn read(survey: &mut Survey) -> VirtualisationFacts {
    VirtualisationFacts {
        guest: guest(survey),
        vendor: dmi(survey, "machine vendor", "sys_vendor"),
        product: dmi(survey, "machine product", "product_name"),
        firmware: firmware(survey),
        hypervisor_type: survey.optional("/sys/hypervisor/type"),
        dev_kvm: survey.exists("/dev/kvm"),
    }
}

fn guest(survey: &mut Survey) -> Option<bool> {
    let question = Question {
        what: "whether the host is a guest",
        cost: "a steal time of 0 cannot be distinguished from one that is not reported",
        remedy: "only x86 reports it in /proc/cpuinfo; the firmware's product name may show it",
    };
    survey.ask(question, "/proc/cpuinfo", |text| Some(field(text, "flags")?.split_whitespace().any(|flag| flag == "hypervisor")))
}

fn dmi(survey: &mut Survey, what: &'static str, file: &str) -> Option<String> {
    let question = Question { what, cost: "the report cannot name the machine", remedy: "none where the firmware has no DMI tables" };
    survey.ask(question, &format!("/sys/class/dmi/id/{file}"), |text| (!text.is_empty()).then(|| text.to_owned()))
}

fn firmware(survey: &Survey) -> Option<String> {
    let parts = ["bios_vendor", "bios_version", "bios_date"].map(|file| survey.optional(&format!("/sys/class/dmi/id/{file}")));
    let said: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    (!said.is_empty()).then(|| said.join(" "))
}
