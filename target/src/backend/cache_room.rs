//! Memory budget for the page cache: decides whether reads of a read-only file go through the
//! cache.
//!
//! Files that together exceed the memory evict each other from the cache before they are read
//! again, so each read costs a copy and finds nothing in the cache. Files get room in the order in
//! which they are opened until half of the available memory is used up. Of a large set, these files
//! stay cached; the others are read with direct I/O and evict nothing. A file with room holds a
//! second descriptor, so the limit on descriptors bounds the number of files as well.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

/// Bytes of available memory needed for each byte of room.
const MARGIN: u64 = 2;

/// Descriptors of the process (`RLIMIT_NOFILE`) for each file with room. A smaller number keeps
/// more files of a large set in memory and allows fewer other descriptors.
const DESCRIPTORS: u64 = 4;

/// `statfs` types of file systems on disks or memory of this machine. On network file systems such
/// as NFS the page cache may be older than the file.
const LOCAL_FILE_SYSTEMS: [u64; 8] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683E, // Btrfs
    0xF2F5_2010, // F2FS
    0x2FC1_2FC1, // ZFS
    0xCA45_1A4E, // bcachefs
    0x794C_7630, // overlayfs
    0x0102_1994, // tmpfs
];

/// Read-only files that are read through the page cache: as many as half of the memory that was
/// available at the start holds, in the order in which they were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheStats {
    /// Most bytes of such files together.
    pub limit_bytes: u64,
    /// Size of the open files of this kind. How much of it is in memory, the kernel decides.
    pub admitted_bytes: u64,
    /// Number of these files.
    pub admitted_files: u64,
    /// Bytes of these files that are locked in memory (`mlock`).
    pub locked_bytes: u64,
    /// Whether these files are read past the page cache, since memory is short.
    pub bypassed: bool,
}

/// Budget of page cache for all read-only files of a target. All cores share it.
#[derive(Debug)]
pub(crate) struct CacheRoom {
    /// Most bytes of files with room.
    limit_bytes: u64,
    given_bytes: AtomicU64,
    /// Most files with room; see [`DESCRIPTORS`].
    limit_files: u64,
    files: AtomicU64,
    /// File bytes locked in memory.
    locked_bytes: AtomicU64,
    /// False while the machine lacks memory for the files with room.
    open: AtomicBool,
}

impl CacheRoom {
    /// Creates a budget of half the memory that is available now.
    pub(crate) fn of_this_machine() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit_files = limit.map_or(u64::MAX, |limit| limit / DESCRIPTORS);
        Self { limit_files, ..Self::of(available_bytes(0)) }
    }

    /// Creates a budget of half of `available_bytes`; 0 bytes if the amount is unknown.
    pub(super) fn of(available_bytes: Option<u64>) -> Self {
        let limit_bytes = available_bytes.unwrap_or(0) / MARGIN;
        let [given_bytes, files, locked_bytes] = [0; 3].map(AtomicU64::new);
        let (limit_files, open) = (u64::MAX, AtomicBool::new(true));
        Self { limit_bytes, given_bytes, limit_files, files, locked_bytes, open }
    }

    /// Reserves room for a file of `bytes`; `None` if too little is left.
    pub(super) fn give(self: &Arc<Self>, bytes: u64) -> Option<CacheShare> {
        let more = |given: u64| given.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        let another = |files: u64| Some(files + 1).filter(|sum| *sum <= self.limit_files);
        let order = Ordering::Relaxed;
        self.files.fetch_update(order, order, another).ok()?;
        if self.given_bytes.fetch_update(order, order, more).is_err() {
            self.files.fetch_sub(1, order);
            return None;
        }
        Some(CacheShare { room: Arc::clone(self), bytes })
    }

    /// Whether files that hold a [`CacheShare`] are currently read through the page cache; false
    /// while the machine is short of memory.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Checks the available memory. When there is less than was given out, files are read past the
    /// cache until there is twice as much. Reads files of procfs and cgroupfs, so only the control
    /// path calls this.
    pub(crate) fn look(&self) {
        if let Some(available) = available_bytes(self.locked_bytes()).filter(|_| self.given() > 0) {
            self.found(available);
        }
    }

    /// Opens the room if the available memory suffices, or closes it. `available_bytes` includes
    /// the page cache of the files with room.
    pub(super) fn found(&self, available_bytes: u64) {
        let needed = if self.is_open() { self.given() } else { self.given() * MARGIN };
        let open = available_bytes >= needed;
        if self.open.swap(open, Ordering::Relaxed) != open {
            let (given, available) = (self.given() >> 20, available_bytes >> 20);
            tracing::info!(
                files_mib = given,
                available_mib = available,
                "the available memory changed: reads of cached files go {} the page cache",
                if open { "through" } else { "past" }
            );
        }
    }

    /// Adds bytes of a file that were locked in memory (`mlock`).
    pub(super) fn locked(&self, bytes: u64) {
        self.locked_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes of a file that were unlocked (`munlock`).
    pub(super) fn unlocked(&self, bytes: u64) {
        self.locked_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Present use of the budget.
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            limit_bytes: self.limit_bytes,
            admitted_bytes: self.given(),
            admitted_files: self.files.load(Ordering::Relaxed),
            locked_bytes: self.locked_bytes(),
            bypassed: !self.is_open(),
        }
    }

    /// Bytes of the files that are locked in memory.
    pub(super) fn locked_bytes(&self) -> u64 {
        self.locked_bytes.load(Ordering::Relaxed)
    }

    fn given(&self) -> u64 {
        self.given_bytes.load(Ordering::Relaxed)
    }
}

/// Room that one open file has in a [`CacheRoom`], given back when dropped.
#[derive(Debug)]
pub(super) struct CacheShare {
    room: Arc<CacheRoom>,
    bytes: u64,
}

impl CacheShare {
    /// Budget that the room is a part of.
    pub(super) fn room(&self) -> &Arc<CacheRoom> {
        &self.room
    }

    /// Whether reads of the file currently go through the cache.
    pub(super) fn is_open(&self) -> bool {
        self.room.is_open()
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        self.room.given_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.room.files.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a file is on a local file system, where the page cache is as new as the file.
pub(super) fn is_local(file: impl AsFd) -> bool {
    // `f_type` is signed on some machines; only its lower 32 bits matter.
    let number = |status: rustix::fs::StatFs| u64::from(status.f_type as u32);
    rustix::fs::fstatfs(file).is_ok_and(|status| LOCAL_FILE_SYSTEMS.contains(&number(status)))
}

/// Memory in bytes that this process can still allocate.
pub(super) fn available_to_process() -> Option<u64> {
    available_bytes(0)
}

/// Available memory in bytes, reclaimable page cache included: the smaller of that of the machine
/// and that of this process's control groups. The machine counts locked pages as used, so
/// `locked_bytes` are added to its value.
fn available_bytes(locked_bytes: u64) -> Option<u64> {
    let of_machine = of_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)? + locked_bytes;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = of_groups(&groups, Path::new("/sys/fs/cgroup"));
    Some(of_groups.map_or(of_machine, |bytes| bytes.min(of_machine)))
}

/// `MemAvailable` of the text of `/proc/meminfo`, in bytes.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Smallest available memory among the control groups (version 1 or 2) in the list of
/// `/proc/self/cgroup`; `None` if none has a limit. In a container a version 1 group is mounted as
/// the root of the hierarchy.
fn of_groups(list: &str, root: &Path) -> Option<u64> {
    let least = |path: &str, root: &Path, version: &GroupFiles| {
        let folder = root.join(path);
        let groups = folder.ancestors().take_while(|folder| folder.starts_with(root));
        groups.filter_map(|folder| version.available(folder)).min()
    };
    let of_line = |line: &str| {
        let (_, line) = line.split_once(':')?;
        match line.split_once(":/")? {
            ("", path) => least(path, root, &VERSION_2),
            (controllers, path) if controllers.split(',').any(|one| one == "memory") => {
                least(path, &root.join("memory"), &VERSION_1)
            }
            _ => None,
        }
    };
    list.lines().filter_map(of_line).min()
}

/// Names of the files in a control group's folder that describe its memory.
struct GroupFiles {
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of `memory.stat` that add up to the page cache.
    cached: &'static [&'static str],
}

const VERSION_2: GroupFiles = GroupFiles {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    cached: &["file"],
};

const VERSION_1: GroupFiles = GroupFiles {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    cached: &["total_active_file", "total_inactive_file"],
};

impl GroupFiles {
    /// Bytes that the group in `folder` can still allocate: up to its lowest limit, plus its
    /// reclaimable page cache; `None` if it has no limit.
    fn available(&self, folder: &Path) -> Option<u64> {
        let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let limit = self.limits.iter().filter_map(number).min()?;
        let used = number(&self.used)?;
        let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
        let is_cached = |(name, bytes): (&str, &str)| {
            self.cached.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
        };
        let cached = stat.lines().filter_map(|line| line.split_once(' ')).filter_map(is_cached);
        Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_files_that_fit_have_room() {
        let room = Arc::new(CacheRoom::of(Some(2000)));
        let first = room.give(600).expect("there is room");
        let stats = room.stats();
        assert_eq!((stats.limit_bytes, stats.admitted_bytes, stats.admitted_files), (1000, 600, 1));
        assert!(room.give(500).is_none(), "together they are more than half");
        let second = room.give(400);
        assert!(second.is_some() && room.give(1).is_none());
        assert!(room.give(u64::MAX).is_none());
        drop(first);
        assert!(room.give(600).is_some(), "a file was closed");
        assert!(Arc::new(CacheRoom::of(None)).give(1).is_none(), "the memory is not known");
    }

    #[test]
    fn descriptors_bound_the_files_that_have_room() {
        let room = Arc::new(CacheRoom { limit_files: 2, ..CacheRoom::of(Some(2000)) });
        assert!(room.give(2000).is_none(), "there is no such room");
        let shares = [(); 2].map(|()| room.give(1).expect("there is room"));
        assert!(room.give(1).is_none());
        drop(shares);
        assert!(room.give(1000).is_some());
    }

    #[test]
    fn memory_that_others_took_closes_the_room() {
        let room = Arc::new(CacheRoom::of(Some(2000)));
        let _share = room.give(1000).expect("there is room");
        for (available, open) in
            [(1000, true), (999, false), (1999, false), (2000, true), (1500, true)]
        {
            room.found(available);
            assert_eq!(room.is_open(), open, "{available}");
        }
    }

    #[test]
    fn memory_is_that_of_the_tightest_group() {
        assert_eq!(of_meminfo("MemTotal: 9 kB\nMemAvailable:     12 kB\n"), Some(12 << 10));
        assert_eq!(of_meminfo("MemTotal: 9 kB\n"), None);
        let root = tempfile::tempdir().expect("a folder");
        let group = |path: &str, limit: &str, used: u64, cached: u64| {
            let folder = root.path().join(path);
            fs::create_dir_all(&folder).expect("made");
            let stat = format!("anon 1\nfile {cached}\nfile_mapped 3\n");
            for (name, text) in [
                ("memory.max", limit),
                ("memory.current", &used.to_string()),
                ("memory.stat", &stat),
            ] {
                fs::write(folder.join(name), text).expect("written");
            }
        };
        group("a", "1000\n", 700, 200);
        group("a/b", "max\n", 700, 200);
        assert_eq!(of_groups("0::/a/b\n", root.path()), Some(500));
        fs::write(root.path().join("a/memory.high"), "900\n").expect("written");
        assert_eq!(of_groups("0::/a/b\n", root.path()), Some(400));
        group("a/b", "600\n", 700, 200);
        assert_eq!(of_groups("1:cpu:/x\n0::/a/b\n", root.path()), Some(100));
        assert_eq!(of_groups("0::/\n", root.path()), None);
        assert_eq!(of_groups("4:memory:/x\n", root.path()), None);
    }

    #[test]
    fn groups_of_version_1_have_limits_as_well() {
        let root = tempfile::tempdir().expect("a folder");
        let group = |path: &str, limit: u64, used: u64| {
            let folder = root.path().join("memory").join(path);
            fs::create_dir_all(&folder).expect("made");
            let stat = "cache 900\ntotal_inactive_file 100\ntotal_active_file 50\n";
            for (name, text) in [
                ("memory.limit_in_bytes", limit.to_string()),
                ("memory.usage_in_bytes", used.to_string()),
                ("memory.stat", stat.to_owned()),
            ] {
                fs::write(folder.join(name), text).expect("written");
            }
        };
        group("", 9_223_372_036_854_771_712, 700);
        group("docker", 1000, 700);
        group("docker/id", 9_223_372_036_854_771_712, 300);
        let list = "12:cpu,cpuacct:/x\n4:memory:/docker/id\n1:name=systemd:/y\n0::/z\n";
        assert_eq!(of_groups(list, root.path()), Some(450));
        // In a container the group is the root, and its path is that of the machine.
        group("", 800, 700);
        assert_eq!(of_groups("4:cpu,memory:/docker/other\n", root.path()), Some(250));
    }
}
