//! Runs guests in QEMU.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::guest::Guest;
use super::scenario::Run;
use super::watch::GuestWatch;

/// Time limit in seconds for a trial boot under KVM.
const TRIAL_SECONDS: &str = "20";
/// Time limit in seconds for a guest without a job folder, which is emulated on a loaded machine.
const BOOT_SECONDS: &str = "3600";
const QEMU: &str = "qemu-system-x86_64";

/// Way in which QEMU executes the guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// Hardware virtualisation by the processor.
    Kvm,
    /// Emulation (TCG), which is slow and works everywhere.
    Emulated,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Emulated => "emulated: figures mean something only beside each other",
        })
    }
}

impl Accelerator {
    /// Returns KVM if a guest boots under it; the existence of /dev/kvm does not suffice.
    pub(crate) fn choose(guest: &Guest) -> Self {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Self::Emulated;
        }
        let mut trial = Command::new("timeout");
        trial.args(["--foreground", TRIAL_SECONDS, QEMU]);
        Self::Kvm.arguments(&mut trial, guest, "rdinit=/bin/true panic=-1");
        trial.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        match trial.status() {
            Ok(status) if status.success() => Self::Kvm,
            _ => Self::Emulated,
        }
    }

    /// Boots the guest with a job folder, and prints the result of each run when it ends. Returns
    /// when the guest has powered off, or was killed because it hung.
    ///
    /// A guest that ends before its job begins is booted a second time, since an emulated kernel
    /// sometimes panics during boot.
    pub(crate) fn run(self, guest: &Guest, job: &Path, runs: &[Run]) -> Result<()> {
        let ended = self.run_once(guest, job, runs);
        if ended.is_ok() || job.join("run.log").exists() {
            return ended;
        }
        eprintln!("the guest ended before its job began, and is booted again");
        self.run_once(guest, job, runs)
    }

    fn run_once(self, guest: &Guest, job: &Path, runs: &[Run]) -> Result<()> {
        let console = job.join("console.log");
        let mut command = self.job_command(guest, job)?;
        let output = File::create(&console)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut qemu = command.spawn().context("cannot start QEMU")?;
        let status = GuestWatch::new(job, runs).until_end(&mut qemu)?;
        let Some(status) = status else {
            bail!("the guest hung and was ended: see {}", console.display());
        };
        ensure!(status.success(), "QEMU failed: {status}: see {}", console.display());
        let job_ended = job.join("exit-status").exists();
        ensure!(job_ended, "the guest did not run its job to the end: see {}", console.display());
        Ok(())
    }

    /// Boots the guest with its console on this terminal, and waits until it powers off.
    pub(crate) fn interact(self, guest: &Guest, job: &Path) -> Result<()> {
        let status = self.job_command(guest, job)?.status().context("cannot start QEMU")?;
        ensure!(status.success(), "QEMU failed: {status}");
        Ok(())
    }

    /// Boots a guest with systemd, and returns its console output once it has powered off, or was
    /// killed after [`BOOT_SECONDS`].
    pub(crate) fn boot(self, guest: &Guest) -> Result<String> {
        let mut command = Command::new("timeout");
        command.args(["--foreground", BOOT_SECONDS, QEMU]);
        self.arguments(&mut command, guest, "rdinit=/lib/systemd/systemd panic=-1");
        let output = command.stdin(Stdio::null()).output().context("cannot start QEMU")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn job_command(self, guest: &Guest, job: &Path) -> Result<Command> {
        let disk = job.join("disk.img");
        make_disk(&disk)?;
        // The guest is killed if this process is.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", QEMU]);
        self.arguments(&mut command, guest, "rdinit=/init.sh panic=-1 mitigations=off");
        let share = format!("local,path={},mount_tag=job,security_model=none", job.display());
        let drive = format!("file={},if=virtio,format=raw,cache=none", disk.display());
        command.args(["-virtfs", &share, "-drive", &drive]);
        Ok(command)
    }

    fn arguments(self, command: &mut Command, guest: &Guest, append: &str) {
        match self {
            Self::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
            Self::Emulated => command.args(["-accel", "tcg,thread=multi", "-cpu", "max"]),
        };
        command.args(["-m", "4G", "-smp", "2", "-nographic", "-no-reboot", "-net", "none"]);
        command.arg("-kernel").arg(guest.kernel()).arg("-initrd").arg(guest.initrd());
        command.args(["-append", &format!("console=ttyS0 quiet {append}")]);
    }
}

/// Creates a disk with an ext4 file system for the exported files. The guest's root is in memory,
/// where direct I/O would test little.
fn make_disk(path: &Path) -> Result<()> {
    File::create(path)?.set_len(4 << 30)?;
    let status = Command::new("sh")
        .args(["-c", "PATH=$PATH:/usr/sbin:/sbin exec mkfs.ext4 -q \"$0\""])
        .arg(path)
        .status()?;
    ensure!(status.success(), "mkfs.ext4 failed: {status}");
    Ok(())
}
