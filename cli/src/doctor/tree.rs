//! Access to the kernel's files and to the output of system tools, real or recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result};
use rdma::{LocalAddress, verbs};

/// Root of the files of a machine: this one, or a recorded one in tests.
pub(crate) struct SystemTree {
    root: PathBuf,
    kind: TreeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeKind {
    Live,
    /// A recorded machine: the output of tools is in files below `tools`, named as the command
    /// line; addresses are in the file `addresses`.
    #[cfg(test)]
    Recorded,
}

impl SystemTree {
    pub(crate) fn live() -> Self {
        Self { root: PathBuf::from("/"), kind: TreeKind::Live }
    }

    #[cfg(test)]
    pub(crate) fn recorded(root: &Path) -> Self {
        Self { root: root.to_owned(), kind: TreeKind::Recorded }
    }

    /// A path of the machine, which begins without `/`.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Returns a file's text, trimmed; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// Parses the first word of a file as a number.
    pub(crate) fn number<N: FromStr>(&self, path: &str) -> Option<N> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    /// Returns the file name in the target of a symbolic link.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let to = fs::read_link(self.path(path)).ok()?;
        Some(to.file_name()?.to_string_lossy().into_owned())
    }

    /// Output of a command; `None` if it is not installed or fails.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> Option<String> {
        match self.kind {
            TreeKind::Live => run(program, arguments),
            #[cfg(test)]
            TreeKind::Recorded => self.text(&format!("tools/{program} {}", arguments.join(" "))),
        }
    }

    /// Addresses of the machine, without link-local ones.
    pub(crate) fn addresses(&self) -> Result<Vec<LocalAddress>> {
        match self.kind {
            TreeKind::Live => {
                rdma::local_addresses().context("cannot list the addresses of this machine")
            }
            #[cfg(test)]
            TreeKind::Recorded => {
                let text = self.text("addresses").unwrap_or_default();
                let address = |line: &str| -> Result<LocalAddress> {
                    let (interface, ip) = line.split_once(' ').context("INTERFACE ADDRESS")?;
                    Ok(LocalAddress { ip: ip.parse()?, interface: interface.to_owned() })
                };
                text.lines().map(address).collect()
            }
        }
    }

    /// Error for which rdma-core cannot be used; `None` if it can.
    pub(crate) fn verbs_obstacle(&self) -> Option<String> {
        match self.kind {
            TreeKind::Live => verbs::devices().err().map(|error| error.to_string()),
            #[cfg(test)]
            TreeKind::Recorded => self.text("verbs-obstacle"),
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    // The search path of ordinary users may lack the folders of administrators' tools.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = path.split(':').map(|folder| Path::new(folder).join(program)).find(|p| p.exists());
    let output = Command::new(found?)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Splits lines of `name: value` or `name value`, as in the output of `ethtool` and in `/proc`.
pub(crate) fn fields(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let (name, value) = line.split_once(':').or_else(|| line.split_once(' '))?;
        Some((name.trim(), value.trim()))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Writes a recorded tree into a folder. A line `PATH: TEXT` is a file, `PATH -> TARGET` a
    /// symbolic link, `PATH:` alone a file that consists of the indented lines behind it, `!PATH`
    /// removes a file or folder, `#` begins a comment.
    pub(crate) fn unpack(recorded: &str, root: &Path) {
        let mut lines = recorded.lines().peekable();
        while let Some(line) = lines.next() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(path) = line.strip_prefix('!') {
                let path = root.join(path);
                let removed =
                    if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.unwrap_or_else(|error| panic!("{line}: {error}"));
                continue;
            }
            if let Some((path, to)) = line.split_once(" -> ") {
                let path = prepare(root, path);
                let _ = fs::remove_file(&path);
                symlink(to, path).unwrap();
                continue;
            }
            let (path, text) = line.split_once(": ").map_or_else(
                || (line.strip_suffix(':').unwrap_or_else(|| panic!("{line:?}")), None),
                |(path, text)| (path, Some(text.to_owned())),
            );
            let text = text.unwrap_or_else(|| {
                let mut text = String::new();
                while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
                    text += &line[2..];
                    text += "\n";
                }
                text
            });
            fs::write(prepare(root, path), text).unwrap();
        }
    }

    fn prepare(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    #[test]
    fn a_recorded_tree_is_files_links_and_tools() {
        let folder = tempfile::tempdir().unwrap();
        let text = "# comment\na/b: 7 and more\na/c:\n  one\n   two\nd -> ../x/mlx5_core\ntools/dcb pfc: on\naddresses: eth0 10.0.0.1\n";
        unpack(text, folder.path());
        let tree = SystemTree::recorded(folder.path());
        assert_eq!(tree.number::<u64>("a/b"), Some(7));
        assert_eq!(tree.text("a/c").as_deref(), Some("one\n two"));
        assert_eq!(tree.link_name("d").as_deref(), Some("mlx5_core"));
        assert_eq!(tree.tool("dcb", &["pfc"]).as_deref(), Some("on"));
        assert_eq!(tree.tool("dcb", &["app"]), None);
        assert_eq!(tree.addresses().unwrap()[0].interface, "eth0");
    }

    #[test]
    fn a_tool_that_fails_or_is_missing_says_nothing() {
        let tree = SystemTree::live();
        assert_eq!(tree.tool("sh", &["-c", "echo text"]).as_deref(), Some("text\n"));
        assert_eq!(tree.tool("sh", &["-c", "echo text; exit 1"]), None);
        assert_eq!(tree.tool("no-such-program-of-anybody", &[]), None);
    }
}
