//! Machine of the measurements. Figures of different machines cannot be compared.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Properties of a machine that affect its speed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct MachineInfo {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// Whether it is a virtual machine, whose speed other guests may affect.
    pub(crate) virtual_machine: bool,
    pub(crate) transparent_huge_pages: String,
    /// Maximum receive buffer of a process without privileges (`net.core.rmem_max`).
    pub(crate) rmem_max_bytes: u64,
    pub(crate) privileged: bool,
    /// Load average of the minute before the run. On a busy machine the figures are unreliable.
    pub(crate) load_before: f64,
    pub(crate) rustc: String,
    /// Commit that was measured, with a `+` if the working tree differed from it.
    pub(crate) commit: String,
}

impl MachineInfo {
    /// Reads the properties of this machine and its load.
    pub(crate) fn describe() -> Self {
        let processors = read("/proc/cpuinfo");
        Self {
            processor: field(&processors, "model name").to_owned(),
            cores: processors.lines().filter(|line| line.starts_with("processor")).count(),
            memory_bytes: kibibytes(field(&read("/proc/meminfo"), "MemTotal")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            virtual_machine: field(&processors, "flags")
                .split(' ')
                .any(|flag| flag == "hypervisor"),
            transparent_huge_pages: selected(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            rmem_max_bytes: read("/proc/sys/net/core/rmem_max").trim().parse().unwrap_or(0),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or(0.0),
            privileged: rustix::process::geteuid().is_root(),
            rustc: output("rustc", &["--version"]),
            commit: commit(),
        }
    }

    /// Formats the main properties as one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} cores of {}{}, {:.0} GiB, Linux {}, {}; load before {:.1}",
            self.cores,
            self.processor,
            if self.virtual_machine { " (virtual machine)" } else { "" },
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.rustc,
            self.load_before,
        )
    }
}

fn commit() -> String {
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = output("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_empty() { commit } else { format!("{commit}+") }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Value of the first line `name : value`; empty if no line has this name.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
}

fn kibibytes(text: &str) -> u64 {
    text.split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Returns the word in brackets: `madvise` of `always [madvise] never`.
fn selected(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("", |(word, _)| word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        assert_eq!(selected("always [madvise] never\n"), "madvise");
        assert_eq!(kibibytes(field("MemTotal:       24683216 kB\n", "MemTotal")), 24_683_216 << 10);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(MachineInfo::describe().cores > 0);
    }
}
