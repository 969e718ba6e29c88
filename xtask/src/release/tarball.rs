//! Tarball of both programs, with the layout of /usr.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::archive::Archive;
use super::programs;
use crate::root;

/// Files of the checkout, and their paths in the tarball.
const FILES: [(&str, &str); 13] = [
    ("target/examples/feedrail-target.service", "lib/systemd/system/feedrail-target.service"),
    ("target/examples/feedrail-target.sysusers", "lib/sysusers.d/feedrail-target.conf"),
    ("target/examples/feedrail.toml", "share/doc/feedrail/examples/feedrail.toml"),
    (
        "target/examples/grafana-dashboard.json",
        "share/doc/feedrail/examples/grafana-dashboard.json",
    ),
    ("target/examples/prometheus-alerts.yml", "share/doc/feedrail/examples/prometheus-alerts.yml"),
    ("README.md", "share/doc/feedrail/README.md"),
    ("CHANGELOG.md", "share/doc/feedrail/CHANGELOG.md"),
    ("SECURITY.md", "share/doc/feedrail/SECURITY.md"),
    ("LICENSE-APACHE", "share/doc/feedrail/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/doc/feedrail/LICENSE-MIT"),
    ("NOTICE", "share/doc/feedrail/NOTICE"),
    ("cli/debian/mount.feedrail.8", "share/man/man8/mount.feedrail.8"),
    ("cli/debian/mount.feedrail.8", "share/man/man8/mount.fuse.feedrail.8"),
];
/// Script that mount(8) runs for file systems of either type.
const MOUNT_HELPER: &str = "cli/debian/mount.feedrail";
const MOUNT_HELPER_NAMES: [&str; 2] = ["mount.feedrail", "mount.fuse.feedrail"];
/// Folders in which each shell searches for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions"),
    ("zsh", "share/zsh/site-functions"),
    ("fish", "share/fish/vendor_completions.d"),
];

/// Generated contents of the tarball.
pub(crate) struct Parts<'a> {
    pub(crate) programs: &'a Path,
    pub(crate) completions: &'a Path,
    pub(crate) manual: &'a Path,
    pub(crate) licences: &'a str,
}

/// Builds the archive, with everything below a folder of this name.
pub(crate) fn archive(name: &str, parts: &Parts<'_>, seconds: u64) -> Result<Archive> {
    let mut archive = Archive::new(seconds);
    for program in programs::NAMES {
        let path = parts.programs.join(program);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        archive.file(&format!("{name}/bin/{program}"), 0o755, bytes);
    }
    let read = |path: &str| fs::read(root().join(path)).with_context(|| path.to_owned());
    for helper in MOUNT_HELPER_NAMES {
        archive.file(&format!("{name}/sbin/{helper}"), 0o755, read(MOUNT_HELPER)?);
    }
    for (from, to) in FILES {
        archive.file(&format!("{name}/{to}"), 0o644, read(from)?);
    }
    archive.file(&format!("{name}/share/doc/feedrail/THIRD-PARTY.txt"), 0o644, parts.licences);
    for (shell, folder) in COMPLETIONS {
        for (file, bytes) in programs::files(&parts.completions.join(shell))? {
            archive.file(&format!("{name}/{folder}/{file}"), 0o644, bytes);
        }
    }
    for (file, bytes) in programs::files(parts.manual)? {
        archive.file(&format!("{name}/share/man/{file}"), 0o644, bytes);
    }
    Ok(archive)
}
