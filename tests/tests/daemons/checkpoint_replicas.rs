//! Replicas of a checkpoint volume on three daemons with a quorum of two.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, Program, eventually, feedrail};
use serde_json::Value;
use tempfile::TempDir;

struct Replicas {
    folder: TempDir,
    daemons: Vec<Option<Daemon>>,
    addresses: Vec<SocketAddr>,
    nqns: Vec<String>,
}

impl Replicas {
    fn formatted() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut replicas =
            Self { folder, daemons: Vec::new(), addresses: Vec::new(), nqns: Vec::new() };
        for index in 0..3 {
            let path = replicas.image(index);
            fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
            let daemon = replicas.options(index).start();
            replicas.addresses.push(daemon.address());
            replicas.nqns.push(daemon.nqn().to_owned());
            replicas.daemons.push(Some(daemon));
        }
        replicas.command(&["format"], &[]).run().success();
        replicas
    }

    fn image(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("replica-{index}.img"))
    }

    fn options(&self, index: usize) -> DaemonOptions {
        DaemonOptions::files([self.image(index)]).arg("--writable")
    }

    fn kill(&mut self, index: usize) {
        self.daemons[index].take().unwrap().kill();
    }

    fn start(&mut self, index: usize) {
        let options = self.options(index).at(self.addresses[index]);
        self.daemons[index] = Some(options.start());
    }

    fn url(&self, index: usize) -> String {
        format!("nvmf://{}/{}", self.addresses[index], self.nqns[index])
    }

    fn command(&self, words: &[&str], arguments: &[&str]) -> Program {
        let urls = [self.url(0), "--replica".into(), self.url(1), "--replica".into(), self.url(2)];
        feedrail(["checkpoint"]).args(words).args(urls).args(arguments).args([
            "--write-quorum",
            "2",
            "--timeout",
            "2000",
            "--provider",
            "soft",
        ])
    }

    fn names(&self) -> Vec<String> {
        let list = self.command(&["list"], &["-o", "json"]).run().success();
        let list: Value = serde_json::from_slice(&list).unwrap();
        let names = list["checkpoints"].as_array().unwrap().iter();
        names.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    fn source(&self, name: &str, length: usize) -> String {
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.bin"), Bytes::new(length as u64).take(length)).unwrap();
        folder.display().to_string()
    }

    #[track_caller]
    fn check(&self, name: &str, source: &str) {
        let copy = tempfile::tempdir_in(self.folder.path()).unwrap();
        let to = copy.path().display().to_string();
        self.command(&["get"], &[name, &to]).run().success();
        let [read, written] =
            [&to, source].map(|one| fs::read(format!("{one}/model.bin")).unwrap());
        assert!(read == written, "{name} differs");
    }
}

#[test]
fn a_commit_needs_two_of_three_and_repair_makes_the_third_equal() {
    let mut replicas = Replicas::formatted();
    let first = replicas.source("first", 3_000_000);
    replicas.command(&["put"], &["first", &first]).run().success();

    // One is killed in the middle of a save.
    let second = replicas.source("second", 80 << 20);
    let daemon = replicas.daemons[2].as_ref().unwrap();
    let writes = || daemon.stats()["io"]["writes"].as_u64().unwrap();
    let before = writes();
    let put = replicas.command(&["put"], &["second", &second, "--lease", "20"]).start();
    eventually("it writes", || writes() > before + 8);
    replicas.kill(2);
    put.wait().success();
    assert_eq!(replicas.names(), ["first", "second"]);
    replicas.check("second", &second);

    // Alone it is never the newest.
    replicas.start(2);
    replicas.kill(0);
    replicas.kill(1);
    let line = replicas.command(&["list"], &[]).run().failure();
    assert!(line.contains("1 replicas answer, and 2 are needed"), "{line}");
    replicas.start(0);
    assert_eq!(replicas.names(), ["first", "second"]);

    // The killed one may have the lease of the save that it missed.
    replicas.start(1);
    replicas.command(&["repair"], &["--dry-run"]).run().success();
    let repair = replicas.command(&["repair"], &["--wait", "110", "-o", "json"]).run().success();
    let repair: Value = serde_json::from_slice(&repair).unwrap();
    assert_eq!(repair["repaired"][0]["copied"], serde_json::json!(["second"]));
    replicas.kill(0);
    assert_eq!(replicas.names(), ["first", "second"]);
    replicas.kill(1);
    let alone = feedrail(["checkpoint", "verify", &replicas.url(2), "--provider", "soft"]);
    alone.run().success();
    replicas.start(1);
    replicas.check("first", &first);
    replicas.check("second", &second);
}

#[test]
fn damage_of_one_replica_is_read_from_another() {
    let replicas = Replicas::formatted();
    let source = replicas.source("source", 2_000_000);
    replicas.command(&["put"], &["one", &source]).run().success();
    let bytes = fs::read(format!("{source}/model.bin")).unwrap();
    let mut image = fs::read(replicas.image(0)).unwrap();
    let place = image.windows(64).position(|window| window == &bytes[..64]).unwrap();
    image[place] ^= 1;
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().write(true).open(replicas.image(0)).unwrap();
    file.write_all_at(&image[place..=place], place as u64).unwrap();
    replicas.check("one", &source);
    let verify = replicas.command(&["verify"], &[]).run();
    let address = replicas.addresses[0].ip().to_string();
    assert!(String::from_utf8_lossy(&verify.stdout).contains(&address), "{verify}");
    assert!(verify.status.is_some_and(|status| !status.success()));
}
