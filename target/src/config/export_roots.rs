//! Paths that may be exported at run time.

use std::path::{Path, PathBuf};

use super::{Config, Medium};

/// Files, devices and folders that may be exported: those that the configuration names, and what is
/// below its `export_roots`. Paths are real: they have no symlinks.
#[derive(Clone, Debug)]
pub(crate) struct ExportRoots {
    /// `None` if anything may be exported that can be opened.
    roots: Option<Vec<PathBuf>>,
    named: Vec<PathBuf>,
    /// Key files of hosts, which are read and never exported.
    keys: Vec<PathBuf>,
}

/// Reason that a path may not be exported.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is not below export_roots, and the configuration does not name it: add its folder to export_roots and restart \
     the target, or name it in the configuration and reload that", .0.display()
)]
pub(crate) struct OutsideRoots(PathBuf);

impl ExportRoots {
    pub(crate) fn of(config: &Config) -> Self {
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        let roots = config.export_roots.as_ref().map(|roots| roots.iter().map(real).collect());
        Self { roots, named: named(config), keys: keys(config) }
    }

    /// Takes the paths that another version of the configuration names; the roots stay.
    pub(crate) fn rename(&mut self, config: &Config) {
        self.named = named(config);
        self.keys = keys(config);
    }

    /// Checks whether a real path may be opened: to be exported, or as a key file.
    ///
    /// # Errors
    /// It is no key file, and [`ExportRoots::check`] refuses it.
    pub(crate) fn check_opened(&self, real: &Path) -> Result<(), OutsideRoots> {
        if self.keys.iter().any(|key| key == real) { Ok(()) } else { self.check(real) }
    }

    /// Checks whether a real path may be exported.
    ///
    /// # Errors
    /// It is neither below a root nor named.
    pub(crate) fn check(&self, real: &Path) -> Result<(), OutsideRoots> {
        let Some(roots) = &self.roots else { return Ok(()) };
        let allowed = roots.iter().chain(&self.named).any(|root| real.starts_with(root));
        if allowed { Ok(()) } else { Err(OutsideRoots(real.to_owned())) }
    }
}

/// Real paths that a configuration names; those that do not exist are left out.
fn named(config: &Config) -> Vec<PathBuf> {
    let subsystems = &config.subsystems;
    let media = subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    let files = media.filter_map(|namespace| match &namespace.medium {
        Medium::File { path, .. } | Medium::Block { path } => Some(path),
        Medium::Null { .. } | Medium::Memory { .. } => None,
    });
    let directories = subsystems.iter().flat_map(|subsystem| &subsystem.directories);
    let paths = files.chain(directories.map(|directory| &directory.path));
    paths.filter_map(|path| path.canonicalize().ok()).collect()
}

/// Real paths of the key files that a configuration names.
fn keys(config: &Config) -> Vec<PathBuf> {
    let entries = config.subsystems.iter().flat_map(|subsystem| &subsystem.host_entries);
    let entries = entries.chain(&config.discovery.host_entries);
    let paths =
        entries.flat_map(|entry| [&entry.dhchap_key].into_iter().chain(&entry.dhchap_ctrl_key));
    paths.filter_map(|path| path.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path, keys: &str) -> Config {
        let text = format!(
            "{keys}[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:t\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = \"named\"\n"
        );
        Config::from_toml(&folder.join("target.toml"), &text).expect("valid")
    }

    #[test]
    fn only_what_is_named_or_below_a_root_is_exported() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("real");
        for name in ["named", "other"] {
            std::fs::write(folder.join(name), name).expect("written");
        }
        std::fs::create_dir(folder.join("root")).expect("made");
        std::os::unix::fs::symlink(folder.join("root"), folder.join("link")).expect("linked");
        for (keys, named, below, other) in [
            ("", true, true, true),
            ("export_roots = []\n", true, false, false),
            ("export_roots = [\"link\"]\n", true, true, false),
        ] {
            let roots = ExportRoots::of(&config(&folder, keys));
            let allowed = |name: &str| roots.check(&folder.join(name)).is_ok();
            assert_eq!(allowed("named"), named, "{keys}");
            assert_eq!(allowed("root/file"), below, "{keys}");
            assert_eq!(allowed("root2"), other, "{keys}");
            assert_eq!(allowed("other"), other, "{keys}");
        }
    }
}
