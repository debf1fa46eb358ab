//! Compiles every `agent/bpf/NAME.bpf.c` with clang and lists the objects. Without clang or its headers, nothing is compiled and
//! the reason is embedded, so that the rest of the agent still builds.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROBE: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nint unused;\n";

fn main() {
    println!("cargo::rerun-if-env-changed=PARTYWALL_CLANG");
    let sources = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../bpf");
    println!("cargo::rerun-if-changed={}", sources.display());
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let clang = env::var("PARTYWALL_CLANG").unwrap_or_else(|_| "clang".into());
    let absent = usable(&clang, &out).err();
    if let Some(why) = &absent {
        println!("cargo::warning=no eBPF programs: {why}");
    }
    let names = if absent.is_some() { Vec::new() } else { compile_all(&clang, &sources, &out) };
    for_tests(&clang, &sources, &out, absent.is_none());
    fs::write(out.join("objects.rs"), listing(&names, absent.as_deref())).unwrap();
}

/// Tests clang with its headers, so that an error in our own sources is never mistaken for a missing tool.
fn usable(clang: &str, out: &Path) -> Result<(), String> {
    let probe = out.join("probe.c");
    fs::write(&probe, PROBE).map_err(|error| error.to_string())?;
    compile(clang, &probe, &out.join("probe.o"), &[])
}

/// Macros for the guarantees of this processor: x86 keeps stores in order.
fn promises() -> &'static [&'static str] {
    if env::var("CARGO_CFG_TARGET_ARCH").unwrap() == "x86_64" {
        &["-DSTORES_IN_ORDER"]
    } else {
        &[]
    }
}

/// Compiles the tracer as for processors without ordered stores. A test inspects its instructions. Empty without clang.
fn for_tests(clang: &str, sources: &Path, out: &Path, usable: bool) {
    let object = out.join("trace.weakly_ordered.o");
    if usable {
        compile(clang, &sources.join("trace.bpf.c"), &object, &[]).unwrap();
    } else {
        fs::write(object, "").unwrap();
    }
}

fn compile_all(clang: &str, sources: &Path, out: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(sources).unwrap().filter_map(|entry| name(&entry.unwrap().path())).collect();
    names.sort();
    for name in &names {
        let source = sources.join(format!("{name}.bpf.c"));
        compile(clang, &source, &out.join(format!("{name}.o")), promises()).unwrap_or_else(|why| panic!("{}: {why}", source.display()));
    }
    names
}

fn name(path: &Path) -> Option<String> {
    println!("cargo::rerun-if-changed={}", path.display());
    path.file_name()?.to_str()?.strip_suffix(".bpf.c").map(str::to_owned)
}

fn compile(clang: &str, source: &Path, object: &Path, promises: &[&str]) -> Result<(), String> {
    // Debian's compilers search this directory for the architecture's headers (asm/types.h). Clang for another target does not.
    let include = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap());
    let flags = ["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-I", &include, "-c"];
    // The types of a program name its source. Without the builder's folder, the same source gives the same bytes everywhere.
    let folder = source.parent().unwrap().display();
    let names = [format!("-ffile-prefix-map={folder}=bpf"), "-fdebug-compilation-dir=.".into()];
    let ran = Command::new(clang).args(flags).args(names).args(promises).arg(source).arg("-o").arg(object).output();
    let ran = ran.map_err(|error| format!("{clang} cannot be started: {error}"))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    Err(said.lines().find(|line| line.contains("error")).unwrap_or(&said).to_owned())
}

fn listing(names: &[String], absent: Option<&str>) -> String {
    let mut text = format!("const ABSENT: Option<&str> = {absent:?};\nconst OBJECTS: &[(&str, &[u8])] = &[\n");
    for name in names {
        writeln!(text, "    ({name:?}, aya::include_bytes_aligned!(concat!(env!(\"OUT_DIR\"), \"/{name}.o\"))),").unwrap();
    }
    text + "];\n"
}
