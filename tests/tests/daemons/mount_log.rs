//! The log of a mount in the background.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, Program, binary, eventually, feedrail, fuse_is_missing,
};
use rustix::io::Errno;
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;

/// A target of one file, a folder to mount at and the name of a log.
struct Scene {
    folder: TempDir,
    daemon: Option<Daemon>,
    place: PathBuf,
    log: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::write(folder.path().join("a.bin"), Bytes::new(1).take(SIZE_BYTES)).unwrap();
        let daemon = Some(Daemon::serving([folder.path().join("a.bin")]));
        let (place, log) = (folder.path().join("place"), folder.path().join("mount.log"));
        fs::create_dir(&place).unwrap();
        Self { folder, daemon, place, log }
    }

    fn url(&self) -> String {
        let daemon = self.daemon.as_ref().unwrap();
        format!("nvmf://{}/{}", daemon.address(), daemon.nqn())
    }

    fn place(&self) -> &str {
        self.place.to_str().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait_for(&self, text: &str) {
        eventually(&format!("the log says {text}"), || self.log().contains(text));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = feedrail(["unmount", "--force", self.place()]).run();
    }
}

fn is_mounted(place: &Path) -> bool {
    place.join("a.bin").exists()
}

#[test]
fn a_mount_in_the_background_logs_the_loss_of_its_target() {
    if fuse_is_missing() {
        return;
    }
    let mut scene = Scene::new();
    let (url, log) = (scene.url(), scene.log.display().to_string());
    let words = ["mount", &url, scene.place(), "--timeout", "1000", "--log-file", &log];
    assert_eq!(feedrail(words).args(["--threads", "1"]).run().success(), b"");
    scene.wait_for("mounted nvmf://");
    let file = File::open(scene.place.join("a.bin")).unwrap();
    let daemon = scene.daemon.take().unwrap();
    let address = daemon.address();
    daemon.kill();
    let error = file.read_at(&mut [0; 100], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{error}");
    scene.wait_for("target lost");
    scene.wait_for("reads fail");
    let log = scene.log();
    assert!(log.find("reads wait") < log.find("reads fail"), "{log}");
    assert!(!log.contains("answered again"), "{log}");

    let files = DaemonOptions::files([scene.folder.path().join("a.bin")]);
    scene.daemon = Some(files.at(address).start());
    eventually("it is read again", || file.read_at(&mut [0; 100], 0).is_ok());
    scene.wait_for("reads are answered again");
    drop(file);
    feedrail(["unmount", scene.place()]).run().success();
    scene.wait_for("unmounted");
}

/// systemd's journal reads stderr of the units of mounts.
#[test]
fn a_mount_of_systemd_logs_to_the_journal() {
    if fuse_is_missing() {
        return;
    }
    let scene = Scene::new();
    let code = "exec 2>\"$1\"; export JOURNAL_STREAM=$(stat -Lc %d:%i \"$1\"); shift; exec \"$@\"";
    let (url, log) = (scene.url(), scene.log.display().to_string());
    let program = binary("feedrail").display().to_string();
    let words = ["-c", code, "sh", &log, &program, "mount", &url, scene.place()];
    Program::new("/bin/sh").args(words).run().success();
    assert!(is_mounted(&scene.place));
    scene.wait_for("<6>mounted nvmf://");
    feedrail(["unmount", scene.place()]).run().success();
    scene.wait_for("<6>unmounted");
    assert!(scene.log().lines().all(|line| line.starts_with('<')), "{}", scene.log());
}

#[test]
fn a_log_that_cannot_be_written_is_an_error_of_the_command() {
    if fuse_is_missing() {
        return;
    }
    let scene = Scene::new();
    let none = scene.folder.path().join("none/log").display().to_string();
    let words = ["mount", &scene.url(), scene.place(), "--log-file", &none];
    let refused = feedrail(words).run().failure();
    assert!(refused.contains("none/log"), "{refused}");
    assert!(!is_mounted(&scene.place));
}
