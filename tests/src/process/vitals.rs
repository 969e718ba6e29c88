//! Resources that a process uses, from /proc.

use std::fs;

use super::eventually;

/// Resources of a running process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Number of open file descriptors.
    pub descriptors: usize,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// CPU time used since its start, in clock ticks of 10 ms.
    pub cpu_ticks: u64,
    /// Number of threads, the main one included.
    pub threads: usize,
}

impl Vitals {
    /// Reads them from `/proc/PID`.
    ///
    /// # Panics
    /// If there is no such process, or it belongs to another user.
    pub fn of(pid: u32) -> Self {
        let folder = format!("/proc/{pid}");
        let count = |name: &str| {
            fs::read_dir(format!("{folder}/{name}"))
                .map(Iterator::count)
                .expect("a running process of ours")
        };
        let stat = fs::read_to_string(format!("{folder}/stat")).expect("a running process");
        // The program's name, in parentheses, may hold spaces.
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields[number - 3].parse::<u64>().expect("numeric by proc(5)");
        Self {
            descriptors: count("fd"),
            resident_bytes: field(24) * rustix::param::page_size() as u64,
            cpu_ticks: field(14) + field(15),
            threads: count("task"),
        }
    }

    /// Waits until a process has at most these descriptors, and at most `slack_bytes` of resident
    /// memory more; its vitals are `now`.
    ///
    /// # Panics
    /// If it has more after two minutes.
    #[track_caller]
    pub fn wait_until_restored(self, slack_bytes: u64, now: impl Fn() -> Self) {
        eventually(&format!("descriptors and memory are again those of {self:?}"), || {
            let now = now();
            now.descriptors <= self.descriptors
                && now.resident_bytes <= self.resident_bytes + slack_bytes
        });
    }
}
