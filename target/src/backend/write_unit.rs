//! Atomic write unit of the device beneath a file: after a power failure the unit is written
//! completely or not at all.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

/// Write unit of an open file or block device in bytes; `None` for file systems without a single
/// local block device (network, memory, several devices). `sysfs` is the mount point of sysfs.
///
/// For a file it is at most the file system's block size, since smaller blocks may lie anywhere
/// within the device's unit.
pub(super) fn of_file(file: &File, sysfs: &Path) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    if metadata.file_type().is_block_device() {
        return of_device(metadata.rdev(), sysfs);
    }
    let unit = of_device(metadata.dev(), sysfs)?;
    let block = rustix::fs::fstatfs(file).ok()?.f_bsize;
    Some(u32::try_from(block).map_or(unit, |block| unit.min(block)))
}

/// Write unit of the block device with the number `device` (major and minor), in bytes: its
/// `physical_block_size`.
fn of_device(device: u64, sysfs: &Path) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = sysfs.join(format!("dev/block/{major}:{minor}"));
    // A partition has no `queue` folder; that of its disk is one level up.
    ["queue", "../queue"].iter().find_map(|queue| {
        let text = fs::read_to_string(folder.join(queue).join("physical_block_size")).ok()?;
        text.trim().parse().ok().filter(|bytes| *bytes > 0)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::*;

    /// A sysfs with the devices 8:0, its partition 8:1, and 259:7.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let disk = |name: &str, physical: &str| {
            let queue = root.path().join("devices/pci").join(name).join("queue");
            fs::create_dir_all(&queue).expect("made");
            fs::write(queue.join("physical_block_size"), physical).expect("written");
        };
        disk("sda", "512\n");
        disk("nvme0n1", "16384\n");
        fs::create_dir(root.path().join("devices/pci/sda/sda1")).expect("made");
        fs::create_dir_all(root.path().join("dev/block")).expect("made");
        for (number, to) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("259:7", "nvme0n1")] {
            let link = root.path().join("dev/block").join(number);
            symlink(Path::new("../../devices/pci").join(to), link).expect("linked");
        }
        root
    }

    #[test]
    fn a_disk_and_its_partition_say_the_same() {
        let root = sysfs();
        let unit = |major, minor| of_device(makedev(major, minor), root.path());
        assert_eq!(unit(8, 0), Some(512));
        assert_eq!(unit(8, 1), Some(512));
        assert_eq!(unit(259, 7), Some(16_384));
        assert_eq!(unit(8, 2), None);
        assert_eq!(unit(0, 27), None, "a file system without a device");
    }

    #[test]
    fn malformed_sizes_are_unknown() {
        let root = sysfs();
        for text in ["", "0\n", "-1\n", "much\n"] {
            let file = root.path().join("dev/block/8:0/queue/physical_block_size");
            fs::write(file, text).expect("written");
            assert_eq!(of_device(makedev(8, 0), root.path()), None, "{text:?}");
        }
    }

    #[test]
    fn the_write_unit_is_at_most_the_file_systems_block() {
        let root = tempfile::tempdir().expect("a folder");
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(of_file(&file, root.path()), None);
        let device = file.metadata().expect("its own").dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let queue = root.path().join(format!("dev/block/{major}:{minor}/queue"));
        fs::create_dir_all(&queue).expect("made");
        for (physical, at_most) in [(512, 512), (1 << 30, (1 << 30) - 1)] {
            fs::write(queue.join("physical_block_size"), physical.to_string()).expect("written");
            let unit = of_file(&file, root.path()).expect("known");
            assert!(unit <= at_most, "{physical}: {unit}");
        }
    }
}
