//! Process of a target on this machine, named with `--target-pid`.

use core::time::Duration;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result, ensure};
use rustix::param::clock_ticks_per_second;

use super::local_files::LocalFiles;

#[derive(Clone, Copy, Debug)]
pub(super) struct LocalTarget {
    pid: u32,
}

impl LocalTarget {
    /// # Errors
    /// No process has this id.
    pub(super) fn new(pid: u32) -> Result<Self> {
        let process = Self { pid };
        process.cpu_time().with_context(|| format!("--target-pid {pid}"))?;
        Ok(process)
    }

    /// CPU time that the process has used, in steps of a clock tick (10 ms).
    pub(super) fn cpu_time(self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid);
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let ticks = cpu_ticks(&text).with_context(|| format!("{path} is not as expected"))?;
        let per_second = clock_ticks_per_second();
        ensure!(per_second > 0, "the system has no clock ticks");
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// Whether the process has all of the files open, so that it shares their pages in the page
    /// cache. `false` if this user has no permission to see its open files.
    pub(super) fn has_open(self, files: &LocalFiles) -> bool {
        let opened: Vec<(u64, u64)> = fs::read_dir(format!("/proc/{}/fd", self.pid))
            .into_iter()
            .flatten()
            .filter_map(|entry| fs::metadata(entry.ok()?.path()).ok())
            .map(|metadata| (metadata.dev(), metadata.ino()))
            .collect();
        files.paths().iter().all(|path| {
            let identity = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
            identity.is_ok_and(|identity| opened.contains(&identity))
        })
    }
}

/// Returns the clock ticks of user and system time in `/proc/PID/stat`. The process name, in
/// parentheses, may contain spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>());
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_a_name_of_any_kind() {
        let stat = "7 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 111 222 13 14 15";
        assert_eq!(cpu_ticks(stat), Some(333));
        for text in ["", "7 (a) S", "7 (a) S 1 2 3 4 5 6 7 8 9 10 -1 x"] {
            assert_eq!(cpu_ticks(text), None, "{text}");
        }
    }

    #[test]
    fn a_process_is_found_with_its_files() {
        let this = LocalTarget::new(std::process::id()).unwrap();
        let open = tempfile::NamedTempFile::new().unwrap();
        let closed = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let files = |path: &std::path::Path| LocalFiles::new(&[path.to_owned()], &[0]).unwrap();
        assert!(this.has_open(&files(open.path())));
        assert!(!this.has_open(&files(&closed)));
        // The kernel has fewer processes.
        assert!(LocalTarget::new(u32::MAX).is_err());
    }
}
