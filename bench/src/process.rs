//! CPU time and memory of a process, from /proc.

use std::fs;

/// CPU seconds of all threads that exist now, with a resolution of nanoseconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() / 1e9
}

/// Resident bytes of a process, without mappings that request huge pages, such as a target's pool.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    resident(&text)
}

fn resident(smaps: &str) -> u64 {
    let (mut kibibytes, mut of_mapping) = (0, 0);
    for line in smaps.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            of_mapping = number(size);
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let asks = flags.split_whitespace().any(|flag| flag == "hg");
            kibibytes += if asks { 0 } else { of_mapping };
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
    fn mappings_with_huge_pages_are_left_out() {
        let smaps = "55d0-55d1 r--p 00000000 fe:00 1 /usr/bin/feedrail-target\nSize: 4 kB\nRss: 3 kB\nVmFlags: rd mr\n\
                     7f00-7f01 rw-p 00000000 00:00 0 \nSize: 64 kB\nRss: 64 kB\nVmFlags: rd wr hg \n\
                     7f02-7f03 rw-p 00000000 00:00 0 \nRss: 5 kB\nVmFlags: rd wr\n";
        assert_eq!(resident(smaps), 8 << 10);
    }

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid) > 0.0);
        assert!(resident_bytes(pid) > 0);
    }
}
