//! SPDK over NVMe/TCP for comparison: its target on the target's core and its load generator on the
//! host's, with null, malloc and io_uring (direct I/O) bdevs in place of our namespaces.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use feedrail_tests::process::{free_address, pause};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cores::{HOST_CORE, TARGET_CORE};
use crate::figures::Figures;
use crate::load::{Load, MediumKind};
use crate::served::MEMORY_BYTES;

/// First part of the names of its figures.
pub(crate) const SECTION: &str = "spdk";
const BLOCK_BYTES: u64 = 512;
/// Memory in MiB that each of the two processes reserves; it contains the malloc bdev.
const PROCESS_MIB: u64 = 1024;
/// Number of checks, and their interval, until the target listens.
const STARTING_LOOKS: u32 = 300;
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Loads that SPDK is compared under.
pub(crate) const LOADS: [Load; 6] = [
    Load::new("randread", 4 << 10, 1),
    Load::new("randread", 4 << 10, 32),
    Load::new("randread", 4 << 10, 128),
    Load::new("randwrite", 4 << 10, 32),
    Load::new("randread", 128 << 10, 8),
    Load::new("randread", 128 << 10, 32),
];

/// Programs of a build of SPDK.
#[derive(Clone, Debug)]
pub(crate) struct SpdkBuild {
    target: PathBuf,
    perf: PathBuf,
}

/// SPDK's target. It is stopped (SIGSTOP) between measurements, since it polls.
pub(crate) struct SpdkTarget {
    build: SpdkBuild,
    child: Child,
    address: SocketAddr,
}

/// Guard that resumes the target, and stops it again on drop.
struct Resumed<'a>(&'a SpdkTarget);

impl SpdkBuild {
    /// Finds the programs of a build.
    ///
    /// # Errors
    /// A program is missing in `folder`.
    pub(crate) fn find(folder: &Path) -> Result<Self> {
        let program = |name: &str| {
            let path = folder.join("build/bin").join(name);
            let missing = || format!("{}: build SPDK first (./configure && make)", path.display());
            path.canonicalize().with_context(missing)
        };
        Ok(Self { target: program("nvmf_tgt")?, perf: program("spdk_nvme_perf")? })
    }
}

impl SpdkTarget {
    /// Starts SPDK's target on the same file that Feedrail serves. Its configuration and its log
    /// are in `folder`.
    pub(crate) fn start(build: &SpdkBuild, folder: &Path, file: &Path) -> Result<Self> {
        let address = free_address();
        let bytes = file.metadata().context("the file to serve")?.len();
        let [configuration, log, socket] =
            ["spdk.json", "spdk.log", "spdk.sock"].map(|name| folder.join(name));
        fs::write(&configuration, configuration_of(file, bytes, address).to_string())?;
        let mut command = Command::new(&build.target);
        command.args(["-m", &format!("[{TARGET_CORE}]"), "--no-pci"]).args(memory_options());
        command.arg("-c").arg(&configuration).arg("-r").arg(&socket);
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().context("cannot run SPDK's target")?;
        let mut target = Self { build: build.clone(), child, address };
        for _ in 0..STARTING_LOOKS {
            if TcpStream::connect(address).is_ok() {
                target.signal(Signal::STOP);
                return Ok(target);
            }
            if target.child.try_wait()?.is_some() {
                break;
            }
            pause(LOOK_INTERVAL);
        }
        bail!("SPDK's target does not listen:\n{}", fs::read_to_string(&log)?)
    }

    /// Runs a load and adds its figures.
    pub(crate) fn measure(
        &self,
        medium: MediumKind,
        load: &Load,
        seconds: u32,
        figures: &mut Figures,
    ) -> Result<()> {
        let _resumed = Resumed::new(self);
        let mut command = Command::new(&self.build.perf);
        command.args(["-c", &format!("[{HOST_CORE}]"), "-w", load.pattern]).args(memory_options());
        command.args(["-q", &load.depth.to_string(), "-o", &load.block_bytes.to_string()]);
        command.args(["-t", &seconds.to_string(), "-r"]).arg(format!(
            "trtype:TCP adrfam:IPv4 traddr:{} trsvcid:{} subnqn:{}",
            self.address.ip(),
            self.address.port(),
            nqn(medium)
        ));
        let output = command.output().context("cannot run spdk_nvme_perf")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "spdk_nvme_perf failed: {text}{complaint}");
        let iops = total(&text).with_context(|| format!("spdk_nvme_perf: {text}{complaint}"))?;
        figures.add(figure(medium, load, "iops"), iops);
        let bytes_per_second = iops * f64::from(load.block_bytes);
        figures.add(figure(medium, load, "bytes_per_second"), bytes_per_second);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // If the target has ended, the next measurement fails.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for SpdkTarget {
    fn drop(&mut self) {
        // A stopped process can be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Resumed<'a> {
    fn new(target: &'a SpdkTarget) -> Self {
        target.signal(Signal::CONT);
        Self(target)
    }
}

impl Drop for Resumed<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::STOP);
    }
}

/// Memory options: huge pages if enough of them are free and hugetlbfs is mounted, as SPDK needs
/// it, else ordinary pages.
fn memory_options() -> Vec<String> {
    let text = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
    let is_mounted = text("mounts").lines().any(|line| line.contains(" hugetlbfs "));
    let mut options = vec!["-s".to_owned(), PROCESS_MIB.to_string()];
    if !is_mounted || free_huge_kib(&text("meminfo")) < PROCESS_MIB << 10 {
        options.push("--no-huge".to_owned());
    }
    options
}

fn free_huge_kib(meminfo: &str) -> u64 {
    let number = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    number("HugePages_Free:").unwrap_or(0) * number("Hugepagesize:").unwrap_or(0)
}

/// Name of a figure of SPDK.
pub(crate) fn figure(medium: MediumKind, load: &Load, unit: &str) -> String {
    format!("{SECTION}/{}/{}/{unit}", medium.name(), load.name())
}

fn nqn(medium: MediumKind) -> String {
    format!("nqn.2026-01.org.example:{}", medium.name())
}

fn configuration_of(file: &Path, bytes: u64, address: SocketAddr) -> Value {
    let method = |name: &str, params: Value| json!({ "method": name, "params": params });
    let blocks = |bytes: u64| bytes / BLOCK_BYTES;
    let bdevs = [
        method(
            "bdev_null_create",
            json!({ "name": "null", "num_blocks": blocks(bytes), "block_size": BLOCK_BYTES }),
        ),
        method(
            "bdev_malloc_create",
            json!({ "name": "memory", "num_blocks": blocks(MEMORY_BYTES), "block_size": BLOCK_BYTES }),
        ),
        method(
            "bdev_uring_create",
            json!({ "name": "file", "filename": file, "block_size": BLOCK_BYTES }),
        ),
    ];
    let mut nvmf = vec![method("nvmf_create_transport", json!({ "trtype": "TCP" }))];
    for medium in MediumKind::ALL {
        let nqn = nqn(medium);
        let listen_address = json!({
            "trtype": "TCP",
            "adrfam": "IPv4",
            "traddr": address.ip().to_string(),
            "trsvcid": address.port().to_string(),
        });
        let namespace = json!({ "bdev_name": medium.name() });
        nvmf.extend([
            method("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })),
            method("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": namespace })),
            method(
                "nvmf_subsystem_add_listener",
                json!({ "nqn": nqn, "listen_address": listen_address }),
            ),
        ]);
    }
    json!({ "subsystems": [
        { "subsystem": "bdev", "config": bdevs },
        { "subsystem": "nvmf", "config": nvmf },
    ] })
}

/// Parses the IOPS in the line `Total` of a report, its first column.
fn total(report: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.starts_with("Total "))?;
    line.split_once(':')?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_taken() {
        let report = "Initializing NVMe Controllers\n\
                      ========================================================\n\
                      Device Information  :       IOPS      MiB/s    Average        min        max\n\
                      TCP  (addr:127.0.0.1) from core  1:  100.00       0.39      10.00      1.00     20.00\n\
                      ========================================================\n\
                      Total               :  247873.85     968.26     128.96      49.80     520.11\n";
        assert_eq!(total(report), Some(247_873.85));
        assert_eq!(total("no such controller"), None);
    }

    #[test]
    fn free_huge_pages_are_counted() {
        let text = "MemTotal: 100 kB\nHugePages_Free:     512\nHugepagesize:       2048 kB\n";
        assert_eq!(free_huge_kib(text), 1 << 20);
        assert_eq!(free_huge_kib("MemTotal: 100 kB\n"), 0);
    }

    #[test]
    fn a_folder_without_a_build_is_told() {
        let error = SpdkBuild::find(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/build/bin/nvmf_tgt: build SPDK first"), "{error}");
    }

    #[test]
    fn each_load_is_one_of_ours() {
        assert!(LOADS.iter().all(|load| Load::ALL.contains(load)));
    }
}
