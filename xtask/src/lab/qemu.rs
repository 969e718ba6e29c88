//! The machine that the guest runs on.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::guest::Guest;

/// The longest that a trial boot under KVM may take, in seconds.
const TRIAL_SECONDS: u64 = 20;

/// How QEMU executes the guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    /// On the processor's virtualisation.
    Kvm,
    /// In emulation: everywhere, slowly.
    Emulated,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Emulated => "emulated: figures mean something only beside each other",
        })
    }
}

impl Machine {
    /// KVM if a guest really boots under it: the device node alone proves nothing.
    pub(crate) fn choose(guest: &Guest) -> Self {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Self::Emulated;
        }
        let mut trial = Self::Kvm.command(guest, "rdinit=/bin/true panic=-1", Some(TRIAL_SECONDS));
        trial.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        match trial.status() {
            Ok(status) if status.success() => Self::Kvm,
            _ => Self::Emulated,
        }
    }

    /// Boots the guest on a job folder, and returns when it has powered off.
    pub(crate) fn run(self, guest: &Guest, job: &Path, limit_seconds: u64) -> Result<()> {
        let console = job.join("console.log");
        let mut command = self.job_command(guest, job, Some(limit_seconds))?;
        let output = File::create(&console)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = command.status().context("cannot start QEMU")?;
        ensure!(status.success(), "the guest did not end by itself: see {}", console.display());
        if !job.join("exit-status").exists() {
            bail!("the guest did not run its job: see {}", console.display());
        }
        Ok(())
    }

    /// Boots the guest with its console on this terminal.
    pub(crate) fn interact(self, guest: &Guest, job: &Path) -> Result<()> {
        let status = self.job_command(guest, job, None)?.status().context("cannot start QEMU")?;
        ensure!(status.success(), "QEMU failed: {status}");
        Ok(())
    }

    fn job_command(self, guest: &Guest, job: &Path, limit: Option<u64>) -> Result<Command> {
        let disk = job.join("disk.img");
        make_disk(&disk)?;
        let mut command = self.command(guest, "rdinit=/init.sh panic=-1 mitigations=off", limit);
        let share = format!("local,path={},mount_tag=job,security_model=none", job.display());
        let drive = format!("file={},if=virtio,format=raw,cache=none", disk.display());
        command.args(["-virtfs", &share, "-drive", &drive]);
        Ok(command)
    }

    fn command(self, guest: &Guest, append: &str, limit_seconds: Option<u64>) -> Command {
        let mut command = match limit_seconds {
            Some(seconds) => {
                let mut command = Command::new("timeout");
                command.args(["--foreground", &seconds.to_string(), "qemu-system-x86_64"]);
                command
            }
            None => Command::new("qemu-system-x86_64"),
        };
        match self {
            Self::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
            Self::Emulated => command.args(["-accel", "tcg,thread=multi", "-cpu", "max"]),
        };
        command.args(["-m", "4G", "-smp", "2", "-nographic", "-no-reboot", "-net", "none"]);
        command.arg("-kernel").arg(guest.kernel()).arg("-initrd").arg(guest.initrd());
        command.args(["-append", &format!("console=ttyS0 quiet {append}")]);
        command
    }
}

/// A disk with a file system for the exported files; the guest's root is in memory, where direct I/O proves little.
fn make_disk(path: &Path) -> Result<()> {
    File::create(path)?.set_len(4 << 30)?;
    let status = Command::new("sh")
        .args(["-c", "PATH=$PATH:/usr/sbin:/sbin exec mkfs.ext4 -q \"$0\""])
        .arg(path)
        .status()?;
    ensure!(status.success(), "mkfs.ext4 failed: {status}");
    Ok(())
}
