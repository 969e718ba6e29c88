//! Runs fio with io_uring on the exported file, to measure the local disk without the target.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cores::{HOST_CORE, pinned};
use crate::load::Load;

/// IOPS and throughput that fio reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    pub(crate) iops: f64,
    pub(crate) bytes_per_second: f64,
}

/// Pages of the buffers that fio uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferPages {
    Ordinary,
    /// Transparent huge pages, which glibc requests without privileges.
    Huge,
}

impl BufferPages {
    pub(crate) const ALL: [Self; 2] = [Self::Ordinary, Self::Huge];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Huge => "huge",
        }
    }

    fn tunable(self) -> &'static str {
        match self {
            Self::Ordinary => "glibc.malloc.hugetlb=0",
            Self::Huge => "glibc.malloc.hugetlb=1",
        }
    }
}

/// Whether fio is installed. If not, it prints how to install it.
pub(crate) fn is_installed() -> bool {
    let installed = Command::new("fio").arg("--version").output().is_ok();
    if !installed {
        eprintln!(
            "fio is missing, so there will be nothing to compare files with: apt-get install fio"
        );
    }
    installed
}

/// Runs fio with direct I/O, registered buffers and a registered file.
pub(crate) fn run(file: &Path, load: &Load, pages: BufferPages, seconds: u32) -> Result<Rates> {
    let [program, arguments @ ..] = pinned(HOST_CORE);
    let mut command = Command::new(program);
    command.args(arguments).arg("fio").env("GLIBC_TUNABLES", pages.tunable());
    command.arg(format!("--filename={}", file.display()));
    command.arg(format!("--rw={}", load.pattern));
    command.arg(format!("--bs={}", load.block_bytes));
    command.arg(format!("--iodepth={}", load.depth));
    command.arg(format!("--runtime={seconds}"));
    command.args(["--name=bench", "--ioengine=io_uring", "--direct=1", "--time_based"]);
    command.args(["--fixedbufs=1", "--registerfiles=1", "--iomem_align=2m"]);
    command.arg("--output-format=json");
    let output = command.output().context("cannot run fio")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio failed: {}", complaint.trim());
    parse(&output.stdout, load.pattern)
}

fn parse(json: &[u8], pattern: &str) -> Result<Rates> {
    let report: Value = serde_json::from_slice(json).context("fio did not print JSON")?;
    let side = if pattern.ends_with("write") { "write" } else { "read" };
    let side = &report["jobs"][0][side];
    let number = |name: &str| side[name].as_f64().with_context(|| format!("fio gave no {name}"));
    Ok(Rates { iops: number("iops")?, bytes_per_second: number("bw_bytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_of_the_pattern_is_taken() {
        let json = br#"{"jobs": [{"read": {"iops": 10.5, "bw_bytes": 43008}, "write": {"iops": 0, "bw_bytes": 0}}]}"#;
        let rates = parse(json, "randread").unwrap();
        assert_eq!(rates, Rates { iops: 10.5, bytes_per_second: 43008.0 });
        assert_eq!(parse(json, "write").unwrap().iops, 0.0);
        assert!(parse(b"fio: error", "read").is_err());
    }
}
