//! Block devices: loop devices of files, where the user may create them (root).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// A loop device, removed when dropped.
struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Creates a loop device of a file; `None` if the system does not allow it.
    fn of(file: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(made.stdout).ok().filter(|_| made.status.success())?;
        Some(Self { path: path.trim().into() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn a_device_that_is_released_meanwhile_is_obtained() {
    let file = file_with(&[1; 1 << 20]);
    let Some(device) = LoopDevice::of(file.path()) else { return };
    let held = open_block(&device.path, WRITABLE).unwrap();
    std::thread::scope(|scope| {
        let again = scope.spawn(|| open_block(&device.path, WRITABLE).map(drop));
        // Long enough for several failed attempts, as beside the last write of a killed process.
        (0..20).for_each(|_| claim::pause());
        drop(held);
        again.join().unwrap().unwrap();
    });
}

#[test]
fn a_file_is_not_served_as_a_device_too() {
    let file = file_with(&[1; 1 << 20]);
    let Some(device) = LoopDevice::of(file.path()) else { return };
    let of_file = |mode| open_file(FilePlace::named(file.path()), mode);
    for (first, second) in [(WRITABLE, WRITABLE), (WRITABLE, READ_ONLY), (READ_ONLY, WRITABLE)] {
        let held = of_file(first).unwrap();
        let error = open_block(&device.path, second).unwrap_err().to_string();
        assert!(error.contains("is in use by process"), "{error}");
        drop(held);
        let held = open_block(&device.path, first).unwrap();
        let error = of_file(second).unwrap_err().to_string();
        assert!(error.contains("is in use by process"), "{error}");
        drop(held);
    }
    let both = (of_file(READ_ONLY).unwrap(), open_block(&device.path, READ_ONLY).unwrap());
    drop(both);
    of_file(WRITABLE).unwrap();
}
