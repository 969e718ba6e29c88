//! What a process of ours uses, from /proc.

use std::fs;

/// CPU time of all threads that run now, in seconds. The kernel keeps it in nanoseconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() / 1e9
}

/// Resident bytes of a process, without those mappings whose name contains `without`.
pub(crate) fn resident_bytes(pid: u32, without: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    resident(&text, without)
}

fn resident(smaps: &str, without: &str) -> u64 {
    let mut counted = false;
    let mut kibibytes = 0;
    for line in smaps.lines() {
        match line.strip_prefix("Rss:") {
            Some(size) if counted => kibibytes += number(size),
            // A mapping begins with its addresses; what belongs to it begins with a key.
            _ if line.split(' ').next().is_some_and(|word| !word.ends_with(':')) => {
                counted = !line.contains(without);
            }
            _ => {}
        }
    }
    kibibytes << 10
}

fn number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_a_name_are_left_out() {
        let smaps = "55d0-55d1 r--p 00000000 fe:00 1 /usr/bin/feedrail-target\nSize: 4 kB\nRss: 3 kB\n\
                     7f00-7f01 rw-s 00000000 00:01 9 /memfd:feedrail-pool (deleted)\nSize: 64 kB\nRss: 64 kB\n\
                     7f02-7f03 rw-p 00000000 00:00 0 \nRss: 5 kB\n";
        assert_eq!(resident(smaps, "memfd:feedrail-pool"), 8 << 10);
        assert_eq!(resident(smaps, "nothing"), 72 << 10);
    }

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid) > 0.0);
        assert!(resident_bytes(pid, "memfd:feedrail-pool") > 0);
    }
}
