//! Guest of the lab: a kernel and an initial RAM disk made of Debian packages, cached.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{root, run};

/// Programs that are needed to build and run a guest, each with its Debian package.
const TOOLS: [(&str, &str); 6] = [
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("zstd", "zstd"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("mkfs.ext4", "e2fsprogs"),
];

/// Number of attempts to build a guest.
const ATTEMPTS: usize = 3;

/// Kernel and initial RAM disk of a guest.
pub(crate) struct Guest {
    folder: PathBuf,
    initrd: PathBuf,
}

/// Debian release that a guest consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Debian 12, Linux 6.1.
    Bookworm,
    /// Debian 13, Linux 6.12.
    #[default]
    Trixie,
}

impl Suite {
    /// Name of the suite in Debian's archive.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

impl Guest {
    /// Returns the guest of a Debian suite. It is built if its recipe has changed since the last
    /// time.
    pub(crate) fn build(suite: Suite) -> Result<Self> {
        let suite = suite.name();
        require_tools()?;
        let recipe = root().join("tests/kernel-lab/guest");
        let folder = root().join("out/lab").join(format!("{suite}-{:016x}", digest(&recipe)?));
        if !folder.join("version").exists() {
            eprintln!("building the guest from Debian {suite}; this takes a minute, once");
            let [script, folder] =
                [&recipe.join("build.sh"), &folder].map(|path| path.display().to_string());
            run_fetching(&[&script, suite, &folder])?;
        }
        Ok(Self { initrd: folder.join("initrd.zst"), folder })
    }

    /// Copies the guest with another initial RAM disk.
    pub(crate) fn with_initrd(&self, initrd: PathBuf) -> Self {
        Self { folder: self.folder.clone(), initrd }
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    pub(crate) fn initrd(&self) -> &Path {
        &self.initrd
    }

    pub(crate) fn kernel_version(&self) -> String {
        let version = fs::read_to_string(self.folder.join("version")).unwrap_or_default();
        version.trim().to_owned()
    }
}

/// Runs a script that downloads packages, up to [`ATTEMPTS`] times, since a mirror may fail
/// temporarily.
pub(crate) fn run_fetching(script: &[&str]) -> Result<()> {
    for _ in 1..ATTEMPTS {
        match run("bash", script, &[]) {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("{error:#}; trying again"),
        }
    }
    run("bash", script, &[])
}

fn require_tools() -> Result<()> {
    let missing: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| !is_there(tool)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("the lab needs: apt-get install --no-install-recommends {}", missing.join(" "))
}

fn is_there(tool: &str) -> bool {
    let script = format!("PATH=$PATH:/usr/sbin:/sbin command -v {tool}");
    Command::new("sh").args(["-c", &script]).output().is_ok_and(|output| output.status.success())
}

fn digest(recipe: &Path) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for name in ["build.sh", "init.sh", "mirrors.sh"] {
        let path = recipe.join(name);
        fs::read(&path).with_context(|| path.display().to_string())?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}
