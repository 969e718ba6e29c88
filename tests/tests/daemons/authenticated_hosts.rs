//! Hosts with keys, and a daemon that requires them: both directions of the proof.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use feedrail_initiator::{
    AuthenticationFailure, Controller, ControllerOptions, Error, ErrorKind, Host, HostAuthError,
    HostNqn, Namespace, Nsid, Secret,
};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, MountedFiles, feedrail, fuse_is_missing, host, loopback_address,
    write_configuration,
};
use nvme_proto::auth::FailureExplanation;
use tempfile::TempDir;

/// Keys of 32 bytes, counted from 0 and from 100, with different transformations.
const HOST_KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const TARGET_KEY: &str = "DHHC-1:03:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";
/// Key that neither side has.
const OTHER_KEY: &str = "DHHC-1:01:MjM0NTY3ODk6Ozw9Pj9AQUJDREVGR0hJSktMTU5PUFGALiae:";

const SUBSYSTEM: &str = "nqn.2026-01.io.feedrail:proved";
const SIZE_BYTES: usize = 1 << 20;
const ALL: &str = "hashes = [\"sha256\", \"sha384\", \"sha512\"]";

/// Folder with the data, the keys and the configuration of a daemon.
struct Scene {
    folder: TempDir,
    data: Vec<u8>,
    address: SocketAddr,
}

impl Scene {
    /// Each host has a name and further lines of its entry.
    fn new(hosts: &[(String, String)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = Bytes::new(7).take(SIZE_BYTES);
        fs::write(folder.path().join("data"), &data).unwrap();
        for (name, key) in
            [("host.key", HOST_KEY), ("target.key", TARGET_KEY), ("other.key", OTHER_KEY)]
        {
            write_key(&folder.path().join(name), key);
        }
        let scene = Self { folder, data, address: SocketAddr::new(loopback_address(), 4420) };
        scene.configure(hosts, "host.key");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, hosts: &[(String, String)], host_key: &str) {
        let entries: String = hosts
            .iter()
            .map(|(nqn, more)| {
                let (host, target) = (self.path(host_key), self.path("target.key"));
                format!(
                    "[[subsystem.host]]\nnqn = \"{nqn}\"\ndhchap_key = \"{}\"\n\
                     dhchap_ctrl_key = \"{}\"\n{more}\n",
                    host.display(),
                    target.display(),
                )
            })
            .collect();
        let text = format!(
            "[[port]]\naddress = \"{}\"\n[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\n\
             allowed_hosts = []\nauthentication = \"required\"\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n{entries}",
            self.address,
            self.path("data").display(),
        );
        write_configuration(self.folder.path(), &text);
    }

    fn start(&self) -> Daemon {
        let options = DaemonOptions::default().arg("--config").arg(self.path("feedrail.toml"));
        options.arg("--log").arg("trace").at(self.address).start()
    }

    fn reads(&self, namespace: &Namespace) {
        for offset in [0, 4096 + 7, SIZE_BYTES - 100_000] {
            let read = namespace.read_to_vec(offset as u64, 100_000).wait().unwrap();
            assert!(read == self.data[offset..offset + 100_000]);
        }
    }
}

fn write_key(path: &Path, key: &str) {
    fs::write(path, format!("{key}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn nqn(name: &str) -> String {
    format!("nqn.2026-01.io.feedrail:{name}")
}

fn of(name: &str) -> Vec<(String, String)> {
    vec![(nqn(name), ALL.to_owned())]
}

fn secret(key: &str) -> Secret {
    key.parse().unwrap()
}

fn options() -> ControllerOptions {
    ControllerOptions::new().connect_timeout(std::time::Duration::from_secs(30))
}

fn one_way() -> ControllerOptions {
    options().dhchap_secret(secret(HOST_KEY))
}

fn both_ways() -> ControllerOptions {
    one_way().dhchap_ctrl_secret(secret(TARGET_KEY))
}

fn host_named(name: &str) -> Host {
    host().host_nqn(nqn(name).parse::<HostNqn>().unwrap()).build().unwrap()
}

fn connect(host: &Host, daemon: &Daemon, options: ControllerOptions) -> Result<Controller, Error> {
    host.connect_with(daemon.target(), options).wait()
}

fn open(controller: &Controller) -> Namespace {
    controller.namespace(Nsid(1)).wait().unwrap()
}

fn failure(error: &Error) -> AuthenticationFailure {
    match error.kind() {
        ErrorKind::Authentication { reason } => *reason,
        _ => panic!("{error}"),
    }
}

fn assert_no_secret(text: &str) {
    for key in [HOST_KEY, TARGET_KEY, OTHER_KEY] {
        assert!(!text.contains(&key[10..30]), "{text}");
    }
}

/// Reads with each hash function and these groups, in one direction and in both.
fn matrix(groups: &[&str]) {
    let mut hosts = Vec::new();
    for hash in ["sha256", "sha384", "sha512"] {
        for group in groups {
            let lines = format!("hashes = [\"{hash}\"]\ngroups = [\"{group}\"]");
            hosts.push((nqn(&format!("{hash}-{group}")), lines));
        }
    }
    let scene = Scene::new(&hosts);
    let daemon = scene.start();
    for (nqn, _) in &hosts {
        for options in [one_way(), both_ways()] {
            let host = host().host_nqn(nqn.parse::<HostNqn>().unwrap()).build().unwrap();
            let controller = connect(&host, &daemon, options.io_queues(2)).expect(nqn);
            scene.reads(&open(&controller));
        }
    }
    assert_no_secret(&daemon.log());
}

#[test]
fn hash_functions_and_small_groups() {
    matrix(&["null", "ffdhe2048", "ffdhe3072"]);
}

#[test]
fn large_groups() {
    matrix(&["ffdhe4096", "ffdhe6144", "ffdhe8192"]);
}

#[test]
fn mistakes_are_named() {
    let scene = Scene::new(&of("a"));
    let daemon = scene.start();
    let (host, refused) = (host_named("a"), FailureExplanation::FAILED);
    let error = connect(&host, &daemon, options()).unwrap_err();
    assert_eq!(failure(&error), AuthenticationFailure::SecretMissing);

    let error = connect(&host, &daemon, options().dhchap_secret(secret(OTHER_KEY))).unwrap_err();
    let by_controller = HostAuthError::RefusedByController(refused);
    assert_eq!(failure(&error), AuthenticationFailure::Failed(by_controller));
    assert_no_secret(&format!("{error} {error:?}"));

    let wrong = one_way().dhchap_ctrl_secret(secret(OTHER_KEY));
    let error = connect(&host, &daemon, wrong).unwrap_err();
    let by_host = HostAuthError::Refused(refused);
    assert_eq!(failure(&error), AuthenticationFailure::Failed(by_host));

    connect(&host, &daemon, both_ways()).unwrap();
    assert_no_secret(&daemon.log());
}

#[test]
fn a_host_authenticates_again_at_a_daemon_that_was_killed() {
    let scene = Scene::new(&of("a"));
    let mut daemon = scene.start();
    let host = host_named("a");
    let controller = connect(&host, &daemon, both_ways().io_queues(3)).unwrap();
    let namespace = open(&controller);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                scene.reads(&namespace);
            }
        });
        for _ in 0..3 {
            scene.reads(&namespace);
            daemon.crash();
            daemon = scene.start();
            scene.reads(&namespace);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(host.counters().reconnects, 3);
    assert_no_secret(&daemon.log());
}

#[test]
fn a_connection_is_authenticated_again_under_reads() {
    let scene = Scene::new(&of("a"));
    let daemon = scene.start();
    let host = host_named("a");
    let controller = connect(&host, &daemon, both_ways().io_queues(2)).unwrap();
    let namespace = open(&controller);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    scene.reads(&namespace);
                }
            });
        }
        for _ in 0..10 {
            controller.reauthenticate().wait().unwrap();
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!((host.counters().reconnects, host.counters().connections_lost), (0, 0));
}

#[test]
fn commands_take_keys() {
    let scene = Scene::new(&of("a"));
    let daemon = scene.start();
    let read = || {
        let program = feedrail(["read", "-q", &nqn("a"), "--length", "4096"]);
        program.args(daemon.options())
    };
    let expected = &scene.data[..4096];
    assert_eq!(read().args(["-S", HOST_KEY, "-C", TARGET_KEY]).run().success(), expected);
    let file =
        |option: &str, name: &str| [option.to_owned(), scene.path(name).display().to_string()];
    let files =
        [file("--dhchap-secret-file", "host.key"), file("--kxchap-ctrl-secret-file", "target.key")];
    assert_eq!(read().args(files.concat()).run().success(), expected);
    let by_environment = read().env("FEEDRAIL_DHCHAP_SECRET", HOST_KEY);
    assert_eq!(by_environment.run().success(), expected);

    let line = read().run().failure();
    assert!(line.contains("--dhchap-secret"), "{line}");
    let line = read().args(["-S", OTHER_KEY]).run().failure();
    assert!(line.contains("no key for this host NQN, or a different one"), "{line}");
    assert_no_secret(&line);
    let line = read().args(file("--dhchap-secret-file", "data")).run().failure();
    assert!(line.contains("data") && line.contains("chmod 600"), "{line}");
    let list = feedrail(["list", "-q", &nqn("a"), "-S", HOST_KEY, "-vvv"]);
    let listed = list.args(daemon.address_options()).run();
    assert_no_secret(&listed.stderr);
}

#[test]
fn a_mount_reads_the_key_files_of_its_manifest() {
    if fuse_is_missing() {
        return;
    }
    let scene = Scene::new(&of("a"));
    let _daemon = scene.start();
    let [manifest, key, target_key, place] =
        ["manifest.json", "host.key", "target.key", "mnt"].map(|name| scene.path(name));
    let manifest = manifest.display().to_string();
    let url = format!("nvmf://{}/{SUBSYSTEM}", scene.address);
    let host = nqn("a");
    feedrail(["manifest", "--name", "set", "--output", &manifest, &url, "-q", &host])
        .args(["--dhchap-secret-file".as_ref(), key.as_os_str()])
        .args(["--dhchap-ctrl-secret-file".as_ref(), target_key.as_os_str()])
        .run()
        .success();

    let mounted = MountedFiles::from(&manifest, &["-q", &host]);
    assert!(fs::read(mounted.path("data")).unwrap() == scene.data);
    mounted.unmount(&[]).success();
    drop(mounted);

    fs::remove_file(&key).unwrap();
    fs::create_dir(&place).unwrap();
    let place = place.display().to_string();
    let line = feedrail(["mount", "--foreground", &manifest, &place, "-q", &host]).run().failure();
    assert!(line.contains("host.key"), "{line}");
}
