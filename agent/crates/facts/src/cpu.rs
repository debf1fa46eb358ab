//! CPUs: model, sharing of cores, packages and caches, and frequency control.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::cpulist;
use crate::survey::{field, Question, Survey};

const FOLDER: &str = "/sys/devices/system/cpu";
/// Name of the missing fact if the permitted CPUs are unknown.
pub const ALLOWED: &str = "allowed CPUs";

/// Facts about the CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuFacts {
    /// Model name, as reported by the CPU.
    pub model: Option<String>,
    /// Revision of its microcode, such as `0xd0003d1`.
    #[serde(default)]
    pub microcode: Option<String>,
    /// CPUs that are online.
    pub online: Option<Vec<u32>>,
    /// CPUs excluded from the scheduler's balancing by the boot parameter `isolcpus`.
    pub isolated: Option<Vec<u32>>,
    /// Position of each online CPU.
    pub places: Vec<Place>,
    /// Whether two CPUs share a core.
    pub smt: Option<bool>,
    /// Every cache, once.
    pub caches: Vec<Cache>,
    /// Frequency control.
    pub frequency: Option<Frequency>,
    /// Whether the CPU may exceed its nominal frequency.
    pub turbo: Option<bool>,
    /// The tightest quota above this process, as a number of CPUs. `None` if there is no quota.
    #[serde(default)]
    pub quota: Option<f64>,
}

/// Position of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Its number.
    pub cpu: u32,
    /// Its package (socket).
    pub package: Option<u32>,
    /// Its core, numbered within the package.
    pub core: Option<u32>,
    /// All CPUs of its core, including itself.
    pub siblings: Vec<u32>,
}

/// One cache and the CPUs that use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Level 1 is next to the core.
    pub level: u32,
    /// Its content.
    pub holds: CacheKind,
    /// Its size.
    pub size_bytes: u64,
    /// Size of its line.
    pub line_bytes: Option<u64>,
    /// Associativity.
    pub ways: Option<u32>,
    /// The CPUs that share it.
    pub shared_by: Vec<u32>,
}

/// Content of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// Frequency control, as reported by the first online CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Frequency {
    /// For example `intel_pstate`.
    pub driver: Option<String>,
    /// For example `performance`.
    pub governor: Option<String>,
    /// Lowest permitted frequency.
    pub min_hz: Option<u64>,
    /// Highest permitted frequency.
    pub max_hz: Option<u64>,
}

pub(crate) fn read(survey: &mut Survey) -> CpuFacts {
    let online = online(survey);
    let cpus = online.clone().unwrap_or_default();
    let places: Vec<Place> = cpus.iter().map(|&cpu| place(survey, cpu)).collect();
    CpuFacts {
        model: model(survey),
        microcode: survey.optional("/proc/cpuinfo").and_then(|text| field(&text, "microcode").map(str::to_owned)),
        isolated: survey.optional(&format!("{FOLDER}/isolated")).and_then(|text| cpulist::parse(&text)),
        smt: (!places.is_empty()).then(|| places.iter().any(|place| place.siblings.len() > 1)),
        caches: caches(survey, &cpus),
        frequency: frequency(survey, cpus.first().copied()),
        turbo: turbo(survey),
        quota: quota(survey.root()),
        places,
        online,
    }
}

fn quota(root: &Path) -> Option<f64> {
    let own = cgroup::own(root).ok()?;
    cgroup::cpu_quota(root, &own).map(|quota| quota.cpus)
}

/// The CPUs that this process may run on. The kernel's list includes CPUs that are offline or missing.
pub(crate) fn allowed(survey: &mut Survey, online: Option<&[u32]>) -> Option<Vec<u32>> {
    let question = Question { what: ALLOWED, cost: "the CPUs for sandboxes are unknown", remedy: "mount procfs on /proc" };
    let there = online.map(<[u32]>::to_vec).or_else(|| processors(survey)).filter(|cpus| !cpus.is_empty());
    let listed = survey
        .optional("/proc/self/status")
        .and_then(|text| cpulist::parse(field(&text, "Cpus_allowed_list")?))
        .map(|cpus| cpus.into_iter().filter(|cpu| there.as_ref().is_none_or(|there| there.contains(cpu))).collect::<Vec<_>>())
        .filter(|cpus| !cpus.is_empty());
    let allowed = listed.or(there);
    if allowed.is_none() {
        survey.lack(question, "/proc/self/status does not list them, and no CPU is known to be online".into());
    }
    allowed
}

/// The CPUs in `/proc/cpuinfo`: the online ones, for hosts whose `/sys` does not list them.
fn processors(survey: &Survey) -> Option<Vec<u32>> {
    let text = survey.optional("/proc/cpuinfo")?;
    // s390 writes `processor 0: version = …`.
    let number = |(key, value): (&str, &str)| match key.strip_prefix("processor")?.trim() {
        "" => value.parse().ok(),
        number => number.parse().ok(),
    };
    Some(pairs(&text).filter_map(number).collect())
}

/// The keys and values of `/proc/cpuinfo`.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.trim(), value.trim()))
}

fn model(survey: &mut Survey) -> Option<String> {
    let question = Question {
        what: "CPU model",
        cost: "results of hosts with different CPUs cannot be distinguished",
        remedy: "none needed on hosts that do not name it",
    };
    survey.ask(question, "/proc/cpuinfo", model_in)
}

/// The model in `/proc/cpuinfo`, or what else it has to tell models apart. Each architecture has keys of its own.
fn model_in(text: &str) -> Option<String> {
    let first = |wanted: &str| {
        let known = |value: &str| !value.is_empty() && value != "unknown";
        pairs(text).find(|(key, value)| key.eq_ignore_ascii_case(wanted) && known(value)).map(|(_, value)| value)
    };
    // x86, LoongArch and 32-bit ARM; MIPS; POWER, SPARC and PA-RISC; SuperH; RISC-V.
    let named = ["model name", "cpu model", "cpu", "cpu type", "uarch"].into_iter().find_map(first).map(str::to_owned);
    let (vendor, of) = (|| first("vendor_id"), |key: &str| text.split(key).nth(1)?.split_whitespace().next());
    let x86 = || Some(format!("{} family {} model {} stepping {}", vendor()?, first("cpu family")?, first("model")?, first("stepping")?));
    let s390 = || Some(format!("{} machine {}", vendor()?, of("machine = ")?));
    let arm = || Some(format!("ARM implementer {} part {}", first("CPU implementer")?, first("CPU part")?));
    let riscv = || Some(format!("RISC-V {}", first("isa")?));
    named.or_else(x86).or_else(s390).or_else(arm).or_else(riscv)
}

fn online(survey: &mut Survey) -> Option<Vec<u32>> {
    let question = Question {
        what: "online CPUs",
        cost: "no topology: pinning cannot avoid or seek shared cores and caches",
        remedy: "mount sysfs on /sys",
    };
    survey.ask(question, &format!("{FOLDER}/online"), cpulist::parse)
}

fn place(survey: &Survey, cpu: u32) -> Place {
    let topology = |name: &str| survey.optional(&format!("{FOLDER}/cpu{cpu}/topology/{name}"));
    Place {
        cpu,
        // -1 if the firmware does not report it.
        package: topology("physical_package_id").and_then(|text| text.parse().ok()),
        core: topology("core_id").and_then(|text| text.parse().ok()),
        // Renamed in 5.3; both names exist for now.
        siblings: topology("core_cpus_list")
            .or_else(|| topology("thread_siblings_list"))
            .and_then(|text| cpulist::parse(&text))
            .unwrap_or_else(|| vec![cpu]),
    }
}

fn caches(survey: &mut Survey, cpus: &[u32]) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    for &cpu in cpus {
        let folder = format!("{FOLDER}/cpu{cpu}/cache");
        let indexes = survey.names(&folder).into_iter().filter(|name| name.starts_with("index"));
        for cache in indexes.filter_map(|index| cache(survey, &format!("{folder}/{index}"))) {
            if !caches.contains(&cache) {
                caches.push(cache);
            }
        }
    }
    if caches.is_empty() {
        let question = Question {
            what: "caches",
            cost: "cache probes and stressors need their sizes given by hand",
            remedy: "some hypervisors hide them; give `bytes` to the cache kernels",
        };
        survey.lack(question, format!("{FOLDER}/cpu*/cache lists none"));
    }
    caches.sort_by(|a, b| (a.level, a.holds as u8, &a.shared_by).cmp(&(b.level, b.holds as u8, &b.shared_by)));
    caches
}

fn cache(survey: &Survey, folder: &str) -> Option<Cache> {
    let read = |name: &str| survey.optional(&format!("{folder}/{name}"));
    Some(Cache {
        level: read("level")?.parse().ok()?,
        holds: match read("type")?.as_str() {
            "Data" => CacheKind::Data,
            "Instruction" => CacheKind::Instruction,
            "Unified" => CacheKind::Unified,
            _ => return None,
        },
        size_bytes: size(&read("size")?)?,
        line_bytes: read("coherency_line_size").and_then(|text| text.parse().ok()),
        ways: read("ways_of_associativity").and_then(|text| text.parse().ok()),
        shared_by: cpulist::parse(&read("shared_cpu_list")?)?,
    })
}

/// Parses `32768K`, `8M` or a plain number of bytes.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn frequency(survey: &mut Survey, cpu: Option<u32>) -> Option<Frequency> {
    let folder = cpu.map_or_else(|| format!("{FOLDER}/cpu*/cpufreq"), |cpu| format!("{FOLDER}/cpu{cpu}/cpufreq"));
    if !survey.exists(&folder) {
        let question = Question {
            what: "CPU frequency",
            cost: "a change of clock looks like a change of speed; only the comparison within a block removes it",
            remedy: "none inside most virtual machines; on metal load the cpufreq driver",
        };
        survey.lack(question, format!("{folder} is not there"));
        return None;
    }
    let read = |name: &str| survey.optional(&format!("{folder}/{name}"));
    let hertz = |name: &str| read(name).and_then(|text| text.parse::<u64>().ok()?.checked_mul(1000));
    Some(Frequency {
        driver: read("scaling_driver"),
        governor: read("scaling_governor"),
        min_hz: hertz("scaling_min_freq"),
        max_hz: hertz("scaling_max_freq"),
    })
}

fn turbo(survey: &mut Survey) -> Option<bool> {
    // intel_pstate reports whether turbo is off; every other driver whether it is on.
    let off = survey.optional(&format!("{FOLDER}/intel_pstate/no_turbo")).map(|text| text == "0");
    let on = || survey.optional(&format!("{FOLDER}/cpufreq/boost")).map(|text| text == "1");
    let turbo = off.or_else(on);
    if turbo.is_none() {
        let question = Question {
            what: "turbo",
            cost: "speed may depend on how many cores are busy, without the report saying so",
            remedy: "none inside most virtual machines",
        };
        survey.lack(question, format!("neither {FOLDER}/intel_pstate/no_turbo nor {FOLDER}/cpufreq/boost is there"));
    }
    turbo
}

#[cfg(test)]
mod tests {
    use super::{model_in, size};

    #[test]
    fn each_architecture_has_a_key_of_its_own_for_the_model() {
        for (text, model) in [
            ("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nmodel name\t: Xeon (R)\n", "Xeon (R)"),
            (
                "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 60\nmodel name\t: unknown\nstepping\t: 1\n",
                "GenuineIntel family 6 model 60 stepping 1",
            ),
            ("processor\t: 0\ncpu\t\t: POWER9 (raw), altivec supported\nclock\t\t: 2.9MHz\n", "POWER9 (raw), altivec supported"),
            (
                "vendor_id       : IBM/S390\n# processors    : 2\n\
                 processor 0: version = FF,  identification = 3FEC87,  machine = 2964\n\ncpu number      : 0\n",
                "IBM/S390 machine 2964",
            ),
            ("system type\t\t: Board A\nprocessor\t\t: 0\ncpu model\t\t: MIPS 24Kc V7.4\n", "MIPS 24Kc V7.4"),
            ("CPU Family\t\t: Loongson-64bit\nModel Name\t\t: Loongson-3C6000/D\n", "Loongson-3C6000/D"),
            ("BogoMIPS\t: 50\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n", "ARM implementer 0x41 part 0xd0c"),
            ("processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\nuarch\t\t: sifive,u74-mc\n", "sifive,u74-mc"),
            ("processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\n", "RISC-V rv64imafdc"),
        ] {
            assert_eq!(model_in(text).as_deref(), Some(model));
        }
        assert_eq!(model_in("processor\t: 0\nBogoMIPS\t: 50\n"), None);
    }

    #[test]
    fn cache_sizes_are_read_with_their_factor() {
        assert_eq!(size("32768K"), Some(32 << 20));
        assert_eq!(size("8M"), Some(8 << 20));
        assert_eq!(size("64"), Some(64));
        assert_eq!(size("64Q"), None);
        assert_eq!(size(""), None);
    }
}
