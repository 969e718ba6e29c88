//! Hosts that prove their name by a key, at a daemon.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use feedrail_auth::{
    AuthOffer, Authenticated, DhGroup, HashFunction, HostAuth, HostAuthError, HostSetup, HostStep,
    Parties, Secret, SequenceNumbers, Transformation,
};
use feedrail_initiator::{RdmaProvider, SubsystemAddress};
use feedrail_tests::hostile::{HostileHost, QueueKey};
use feedrail_tests::process::{
    Daemon, DaemonOptions, ManagementClient, OpenMetricsPage, eventually, feedrail, free_address,
    host, loopback_address, metrics_text, pause, write_configuration,
};
use nvme_proto::auth::{
    AuthMessage, AuthReply, AuthTransaction, AuthenticationReceive, AuthenticationSend,
    FailureExplanation,
};
use nvme_proto::fabrics::ConnectResponse;
use nvme_proto::{Cntlid, HostNqn, Nqn, Nsid, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.feedrail:authenticated";
const SIZE_BYTES: usize = 1 << 20;
/// Memory of the host for messages.
const MESSAGES_AT: usize = 1 << 20;
const FAILED: HostAuthError = HostAuthError::RefusedByController(FailureExplanation::FAILED);

fn secret(first: u8) -> Secret {
    let bytes: Vec<u8> = (first..first + 32).collect();
    Secret::new(Transformation::Hmac(HashFunction::Sha256), &bytes).unwrap()
}

/// A target with a key for one host, and that host.
struct Scene {
    folder: TempDir,
    address: String,
    metrics: SocketAddr,
    daemon: Daemon,
    host: HostileHost,
    transactions: u16,
}

impl Scene {
    fn start(options: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (host, address) = (HostileHost::new(None), loopback_address().to_string());
        fs::write(folder.path().join("data"), vec![7; SIZE_BYTES]).unwrap();
        write_key(folder.path(), "host.key", 0);
        let metrics = free_address();
        let head = format!("{options}metrics = \"{metrics}\"\n");
        let path = configure(folder.path(), &head, &address, &[host.nqn()]);
        let daemon = DaemonOptions::default().arg("--config").arg(path).arg("--log").arg("debug");
        Self { folder, address, metrics, daemon: daemon.start(), host, transactions: 0 }
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.folder.path().join("socket"))
    }

    fn call(&self, method: &str, params: Value) -> Result<Value, String> {
        let called = self.client().call(method, &params);
        called.map_err(|error| error["message"].as_str().unwrap().to_owned())
    }

    fn connect(&mut self, qid: u16, cntlid: Cntlid) -> (QueueKey, Cntlid, bool) {
        let queue = self.host.link(self.daemon.address(), qid, 32, usize::MAX);
        let response = self.host.nvme_connect(&self.daemon, queue, qid, cntlid, 32);
        assert!(response.status().is_success(), "{response:?}");
        let response = ConnectResponse::from_bits(response.dw0.get());
        (queue, response.cntlid(), response.authentication_required())
    }

    /// Runs a transaction with the secret that is counted from `first`.
    fn authenticate(&mut self, queue: QueueKey, first: u8) -> Result<Authenticated, HostAuthError> {
        let parties = Parties { host: self.host.nqn(), subsystem: NQN.parse().unwrap() };
        let groups = [Some(DhGroup::Ffdhe2048)];
        let setup = HostSetup {
            parties,
            host_key: secret(first).key_for(&parties.host.0),
            controller_key: None,
            offer: AuthOffer::new(&[HashFunction::Sha256], &groups).unwrap(),
            sequences: SequenceNumbers::new(&mut random),
        };
        self.transactions += 1;
        let id = AuthTransaction(self.transactions);
        let (mut auth, mut step) = HostAuth::begin(Arc::new(setup), id);
        loop {
            step = match step {
                HostStep::Send(message) => match self.send(queue, &message) {
                    Status::SUCCESS => auth.sent(),
                    status => auth.command_failed(status),
                },
                HostStep::Receive => match self.receive(queue) {
                    Ok(message) => auth.received(&message, &mut random),
                    Err(status) => auth.command_failed(status),
                },
                HostStep::Compute(work) => auth.computed(work.run(&mut random), &mut random),
                HostStep::Finish(result) => return result,
            };
        }
    }

    fn send(&mut self, queue: QueueKey, message: &[u8]) -> Status {
        self.host.put(MESSAGES_AT, message);
        let command = AuthenticationSend { length_bytes: message.len() as u32 }.to_sqe();
        let sqe = command.with_data(self.host.keyed(MESSAGES_AT, message.len()));
        self.host.status(queue, &sqe, &[]).expect("connected")
    }

    fn receive(&mut self, queue: QueueKey) -> Result<Vec<u8>, Status> {
        let command = AuthenticationReceive { length_bytes: 4096 }.to_sqe();
        let sqe = command.with_data(self.host.keyed(MESSAGES_AT, 4096));
        match self.host.status(queue, &sqe, &[]).expect("connected") {
            Status::SUCCESS => Ok(self.host.get(MESSAGES_AT, 4096)),
            status => Err(status),
        }
    }

    fn reads(&mut self, queue: QueueKey) -> Status {
        let sqe = feedrail_tests::hostile::read(1, 0, 4096);
        let sqe = sqe.with_data(self.host.keyed(0, 4096));
        self.host.status(queue, &sqe, &[]).expect("connected")
    }

    /// Authenticated admin queue and I/O queue of an enabled controller.
    fn associate(&mut self, first: u8) -> (QueueKey, QueueKey) {
        let (admin, cntlid, must) = self.connect(0, Cntlid::DYNAMIC);
        assert!(must);
        self.authenticate(admin, first).expect("the key is right");
        self.host.enable(admin);
        let (io, _, must) = self.connect(1, cntlid);
        assert!(must);
        assert_eq!(self.reads(io), Status::AUTHENTICATION_REQUIRED);
        self.authenticate(io, first).expect("the key is right");
        assert_eq!(self.reads(io), Status::SUCCESS);
        (admin, io)
    }
}

fn random(bytes: &mut [u8]) {
    let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()));
}

fn write_key(folder: &Path, name: &str, first: u8) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, &*secret(first).to_representation()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// Writes a configuration in which these hosts have the key in `host.key`.
fn configure(folder: &Path, head: &str, address: &str, hosts: &[HostNqn]) -> PathBuf {
    let mut text = format!(
        "{head}state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
         [[port]]\naddress = \"{address}:4420\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"data\"\n"
    );
    for host in hosts {
        text.push_str(&format!(
            "[[subsystem.host]]\nnqn = \"{host}\"\ndhchap_key = \"host.key\"\n"
        ));
    }
    write_configuration(folder, &text)
}

#[test]
fn a_key_lets_a_host_in_and_is_told_nowhere() {
    let mut scene = Scene::start("");
    let (_, io) = scene.associate(0);
    let queues = scene.call("nvmf_subsystem_get_qpairs", json!({ "nqn": NQN })).unwrap();
    let auth = json!({ "state": "completed", "digest": "sha256", "dhgroup": "ffdhe2048" });
    assert_eq!(queues[1]["auth"], auth, "{queues}");
    let (refused, _, _) = scene.connect(0, Cntlid::DYNAMIC);
    assert_eq!(scene.authenticate(refused, 1), Err(FAILED));
    scene.host.wait_down(refused);
    assert_eq!(scene.reads(io), Status::SUCCESS);
    scene.daemon.wait_for_log("authentication refused");
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = metrics_text(scene.metrics, media);
    let page = OpenMetricsPage::parse(&text);
    let host = scene.host.nqn();
    let count = |result: &str| {
        let labels = format!("nqn=\"{NQN}\",host=\"{host}\",result=\"{result}\"");
        page.get(&format!("feedrail_authentications_total{{{labels}}}"))
    };
    assert_eq!((count("authenticated"), count("failed")), (2.0, 1.0));
    // A secret that an operator gives by mistake.
    let key = secret(0).to_representation();
    let params = json!({ "nqn": NQN, "host": host.to_string(), "dhchap_key": *key });
    let refused = scene.call("nvmf_subsystem_set_keys", params).expect_err("this is no name");
    eventually("the call is in the audit log", || scene.daemon.log().contains("[a secret]"));
    let subsystems = scene.call("nvmf_get_subsystems", json!({})).unwrap().to_string();
    let saved = scene.call("framework_get_config", json!({ "name": "nvmf" })).unwrap().to_string();
    let texts = [scene.daemon.log(), text, refused, subsystems, saved];
    for text in texts {
        // The secret itself, and its bytes as a list or in hexadecimal.
        for secret in [&key[10..40], "1, 2, 3, 4, 5, 6", "000102030405"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}

#[test]
fn keys_change_at_reload_and_by_methods() {
    let mut scene = Scene::start("");
    let (admin, io) = scene.associate(0);
    write_key(scene.folder.path(), "host.key", 50);
    let reloaded = scene.call("feedrail_reload_config", json!({})).unwrap();
    let host = scene.host.nqn().to_string();
    assert_eq!(reloaded["changes"], json!([{ "nqn": NQN, "change": "set_keys", "host": host }]));
    assert_eq!(scene.reads(io), Status::SUCCESS, "it stays connected");
    scene.authenticate(io, 50).expect("the new key");
    let (other, _, _) = scene.connect(0, Cntlid::DYNAMIC);
    assert_eq!(scene.authenticate(other, 0), Err(FAILED), "the old key");
    scene.host.wait_down(other);
    // A key file that cannot be used changes nothing.
    fs::write(scene.folder.path().join("host.key"), "DHHC-1:").unwrap();
    let refused = scene.call("feedrail_reload_config", json!({})).expect_err("no key");
    assert!(refused.contains("nothing is changed") && refused.contains("host.key"), "{refused}");
    // Methods of SPDK.
    let path = write_key(scene.folder.path(), "third.key", 90);
    scene.call("keyring_file_add_key", json!({ "name": "third", "path": path })).unwrap();
    let keys = json!({ "nqn": NQN, "host": host, "dhchap_key": "third" });
    scene.call("nvmf_subsystem_set_keys", keys).unwrap();
    let used = scene.call("keyring_file_remove_key", json!({ "name": "third" }));
    assert!(used.expect_err("in use").contains(&host));
    scene.authenticate(io, 90).expect("the key of the method");
    let saved = scene.call("framework_get_config", json!({ "name": "keyring" })).unwrap();
    assert_eq!(saved[0]["params"], json!({ "name": "third", "path": path }));
    let toml = scene.call("feedrail_get_config_toml", json!({})).unwrap();
    assert!(toml["toml"].as_str().unwrap().contains("third.key"), "{toml}");
    // A host that has to authenticate again, and does not, is disconnected.
    let socket = scene.folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    let reauth = |words: &[&str]| {
        feedrail(["target", "reauth"].iter().chain(words).chain(&["--socket", socket])).run()
    };
    assert_eq!(reauth(&[NQN, "nqn.2026-01.org.example:absent"]).success(), b"0\n");
    let unknown = reauth(&["nqn.2026-01.org.example:absent"]).failure();
    assert!(unknown.contains("absent"), "{unknown}");
    let text = reauth(&[NQN, "--within", "1", "-o", "json"]).success();
    let demanded: Value = serde_json::from_slice(&text).unwrap();
    assert!(demanded["controllers"].as_u64() > Some(0), "{demanded}");
    scene.authenticate(admin, 90).expect("in time");
    scene.host.wait_down(io);
    assert!(scene.host.state(admin) != raw_peers::RawLinkState::Down);
    let removed = json!({ "nqn": NQN, "host": host });
    scene.call("nvmf_subsystem_remove_host", removed).unwrap();
}

#[test]
fn a_confined_daemon_reads_its_keys_again() {
    let mut scene = Scene::start("confinement = \"on\"\nexport_roots = []\n");
    scene.associate(0);
    let new = write_key(scene.folder.path(), "new.key", 50);
    fs::rename(new, scene.folder.path().join("host.key")).unwrap();
    scene.call("feedrail_reload_config", json!({})).unwrap();
    let (admin, _, _) = scene.connect(0, Cntlid::DYNAMIC);
    scene.authenticate(admin, 50).expect("the new key");
    // Key files are not exported.
    let path = scene.folder.path().join("host.key");
    let params = json!({ "name": "key", "filename": path, "block_size": 512 });
    let refused = scene.call("bdev_uring_create", params).expect_err("outside of the roots");
    assert!(refused.contains("export_roots"), "{refused}");
}

#[test]
fn a_host_that_gets_a_key_has_to_connect_again() {
    let mut scene = Scene::start("");
    let address = scene.address.clone();
    let head = format!("metrics = \"{}\"\n", scene.metrics);
    configure(scene.folder.path(), &head, &address, &[]);
    scene.call("feedrail_reload_config", json!({})).unwrap();
    let (admin, _, must) = scene.connect(0, Cntlid::DYNAMIC);
    assert!(!must, "by its name");
    configure(scene.folder.path(), &head, &address, &[scene.host.nqn()]);
    scene.call("feedrail_reload_config", json!({})).unwrap();
    scene.host.wait_down(admin);
    scene.associate(0);
    let nqn: Nqn = NQN.parse().unwrap();
    assert_eq!(scene.daemon.nqn(), nqn.to_string());
}

/// Strangers that begin one transaction each, in which the target computes for ffdhe8192.
struct Strangers {
    daemon: SocketAddr,
    subsystem: Nqn,
}

impl Strangers {
    /// Comes with `rate` strangers a second until it is told to stop. Returns their number.
    fn come(&self, rate: u32, stop: &AtomicBool) -> u32 {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut host = HostileHost::new(None);
            for _ in 0..rate {
                let begun = clock();
                self.knock(&mut host);
                count += 1;
                pause((Duration::from_secs(1) / rate).saturating_sub(clock() - begun));
            }
        }
        count
    }

    fn knock(&self, host: &mut HostileHost) {
        let queue = host.link(self.daemon, 0, 32, usize::MAX);
        if !host.connect_to(queue, self.subsystem) {
            return;
        }
        let group = [Some(DhGroup::Ffdhe8192)];
        let offer = AuthOffer::new(&[HashFunction::Sha256], &group).unwrap();
        let parties = Parties { host: host.nqn(), subsystem: self.subsystem };
        let setup = HostSetup {
            parties,
            host_key: secret(1).key_for(&parties.host.0),
            controller_key: None,
            offer,
            sequences: SequenceNumbers::new(&mut random),
        };
        let (_, step) = HostAuth::begin(Arc::new(setup), AuthTransaction(1));
        let HostStep::Send(negotiate) = step else { panic!("a message is first") };
        let sent = |host: &mut HostileHost, message: &[u8]| {
            host.put(MESSAGES_AT, message);
            let command = AuthenticationSend { length_bytes: message.len() as u32 }.to_sqe();
            let sqe = command.with_data(host.keyed(MESSAGES_AT, message.len()));
            host.status(queue, &sqe, &[]) == Some(Status::SUCCESS)
        };
        let receive = AuthenticationReceive { length_bytes: 4096 }.to_sqe();
        if sent(host, &negotiate) {
            let sqe = receive.with_data(host.keyed(MESSAGES_AT, 4096));
            let _ = host.status(queue, &sqe, &[]);
            // A value of the group, and a wrong response: found out after the exponentiation.
            let mut buffer = [0; 2048];
            let reply = AuthMessage::Reply(AuthReply {
                transaction: AuthTransaction(1),
                sequence: 1,
                response: &[0; 32],
                challenge: None,
                dh_value: &[0x55; 1024],
            });
            sent(host, reply.encode(&mut buffer).unwrap());
        }
        host.disconnect_all();
    }
}

/// Prints the latencies of a host that reads, without strangers and while a hundred a second
/// come.
#[test]
#[ignore = "measures for half a minute"]
fn strangers_that_negotiate_leave_others_alone() {
    const SECONDS: u64 = 10;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(folder.path().join("data"), vec![7; SIZE_BYTES]).unwrap();
    let stranger: Nqn = "nqn.2026-01.io.feedrail:guarded".parse().unwrap();
    let text = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
         [[port]]\naddress = \"{}:4420\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n[[subsystem.namespace]]\npath = \"data\"\n\
         [[subsystem]]\nnqn = \"{stranger}\"\nallow_any_host = true\nauthentication = \"required\"\n\
         [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n",
        loopback_address()
    );
    let path = write_configuration(folder.path(), &text);
    let daemon = DaemonOptions::default().arg("--config").arg(path).start();
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    let groups = json!({ "dhchap_dhgroups": ["ffdhe8192"] });
    client.call("nvmf_set_config", &groups).unwrap();
    let reader = host().provider(RdmaProvider::Soft).build().unwrap();
    let target = SubsystemAddress { address: daemon.address(), nqn: NQN.parse().unwrap() };
    let controller = reader.connect(target).wait().unwrap();
    let namespace = controller.namespace(Nsid(1)).wait().unwrap();
    let measure = |name: &str| {
        let (start, mut nanos) = (clock(), Vec::new());
        while clock() - start < Duration::from_secs(SECONDS) {
            let begun = clock();
            namespace.read_to_vec(0, 4096).wait().unwrap();
            nanos.push((clock() - begun).as_nanos());
        }
        nanos.sort_unstable();
        let at = |part: usize| nanos[(nanos.len() - 1) * part / 1000] / 1000;
        println!(
            "{name}: {} reads, p50 {} us, p99 {} us, p99.9 {} us",
            nanos.len(),
            at(500),
            at(990),
            at(999)
        );
    };
    measure("alone");
    let (stop, before) = (AtomicBool::new(false), daemon.vitals());
    let strangers = Strangers { daemon: daemon.address(), subsystem: stranger };
    std::thread::scope(|scope| {
        let come = || scope.spawn(|| strangers.come(25, &stop));
        let threads: [_; 4] = std::array::from_fn(|_| come());
        measure("beside strangers");
        stop.store(true, Ordering::Relaxed);
        let count: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        println!("{count} strangers came");
    });
    measure("alone again");
    println!("before {before:?}, after {:?}", daemon.vitals());
}

#[expect(clippy::disallowed_methods, reason = "measures")]
fn clock() -> Instant {
    Instant::now()
}
