//! Finds the management sockets of targets that run on this machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Management socket of the packaged service.
const OF_SERVICE: &str = "/run/feedrail/target.sock";
const PROCESS: &str = "feedrail-target";

/// Returns the socket to use without `--socket`: that of the packaged service, or of the only
/// running target.
///
/// # Errors
/// No target runs, or several do; then the error lists their sockets.
pub(super) fn only_socket() -> Result<PathBuf> {
    let service = Path::new(OF_SERVICE);
    // If the folder cannot be searched, the service belongs to another user, and connecting fails.
    if fs::symlink_metadata(service)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    {
        return only(sockets(&fs::read_to_string("/proc/net/unix").unwrap_or_default()));
    }
    Ok(service.to_owned())
}

fn only(mut sockets: Vec<PathBuf>) -> Result<PathBuf> {
    match (sockets.pop(), &sockets[..]) {
        (Some(one), []) => Ok(one),
        (None, _) => bail!(
            "no target with a management socket runs here: there is no {OF_SERVICE}; feedrail-target --management PATH \
             makes one listen, and --socket names it"
        ),
        (Some(last), others) => {
            let mut listed: Vec<_> = others.iter().chain([&last]).collect();
            listed.sort();
            let listed: Vec<_> = listed.iter().map(|path| path.display().to_string()).collect();
            bail!("several targets run: choose one with --socket, of {}", listed.join(", "))
        }
    }
}

/// Sockets of targets of this user and of root, from `/proc/net/unix`. A target binds its socket to
/// the path with `.PID` appended and then renames it; the kernel keeps the first path.
fn sockets(unix: &str) -> Vec<PathBuf> {
    let paths = unix.lines().skip(1).filter_map(path_of);
    let mut sockets: Vec<_> = paths.filter_map(|path| of_target(path, name_of_process)).collect();
    sockets.sort();
    sockets.dedup();
    sockets
}

/// Returns the eighth column, the path, which may contain spaces.
fn path_of(line: &str) -> Option<&str> {
    let mut rest = line;
    for _ in 0..7 {
        (_, rest) = rest.trim_start().split_once(' ')?;
    }
    Some(rest)
}

fn of_target(bound: &str, name_of: impl Fn(u32) -> Option<String>) -> Option<PathBuf> {
    let (path, process) = bound.rsplit_once('.')?;
    let process = process.parse().ok()?;
    if path.starts_with('@') || name_of(process)? != PROCESS {
        return None;
    }
    // A relative path is relative to the working directory of the target.
    match Path::new(path).is_absolute() {
        true => Some(path.into()),
        false => Some(fs::read_link(format!("/proc/{process}/cwd")).ok()?.join(path)),
    }
}

/// Name of a process; `None` unless it runs as this user or root, since any other user could create
/// a socket with a target's path.
fn name_of_process(process: u32) -> Option<String> {
    let owner = fs::metadata(format!("/proc/{process}")).ok()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_targets_are_found_among_others() {
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01  1234 /run/a b/socket.77";
        assert_eq!(path_of(line), Some("/run/a b/socket.77"));
        assert_eq!(path_of("0000000000000000: 00000002 00000000 00010000 0001 01 1234"), None);
        let name_of = |process| (process == 77).then(|| PROCESS.to_owned());
        for (bound, socket) in [
            ("/run/a b/socket.77", Some("/run/a b/socket")),
            ("/run/socket.78", None),
            ("/run/socket", None),
            ("/run/socket.", None),
            ("@feedrail.77", None),
        ] {
            assert_eq!(of_target(bound, name_of), socket.map(PathBuf::from), "{bound}");
        }
    }

    #[test]
    fn one_that_runs_is_taken_and_several_are_listed() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(only(paths(&["/a"])).expect("one"), Path::new("/a"));
        let error = only(paths(&["/a", "/b", "/c"])).expect_err("several").to_string();
        assert!(error.ends_with("of /a, /b, /c"), "{error}");
        assert!(only(Vec::new()).expect_err("none").to_string().contains("--management"));
    }
}
