//! Hosts are let in and shut out through the management socket while others work.

use std::path::Path;

use feedrail_initiator::{Controller, ErrorKind, Host, SubsystemAddress};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, eventually, feedrail, host, write_configuration,
};
use nvme_proto::{HostNqn, Nsid, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.feedrail:hosts";
const LISTED: &str = "nqn.2026-01.io.feedrail:host:listed";
const OTHER: &str = "nqn.2026-01.io.feedrail:host:other";
const SIZE_BYTES: usize = 1 << 20;

struct Managed {
    folder: TempDir,
    daemon: Daemon,
    bytes: Vec<u8>,
}

impl Managed {
    /// A target that one host may use.
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes = Bytes::new(1).take(SIZE_BYTES);
        std::fs::write(folder.path().join("shard"), &bytes).unwrap();
        let address = feedrail_tests::process::loopback_address();
        let configuration = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\n\
             [[port]]\naddress = \"{address}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallowed_hosts = [\"{LISTED}\"]\n\
             [[subsystem.namespace]]\npath = \"shard\"\n"
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let options = DaemonOptions::default().arg("--config").arg(configuration);
        let daemon = options.arg("--management").arg(folder.path().join("socket")).start();
        Self { folder, daemon, bytes }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.socket())
    }

    /// Names of the hosts that are connected.
    fn connected(&self) -> Vec<String> {
        let params = json!({ "nqn": NQN });
        let controllers = self.client().call("nvmf_subsystem_get_controllers", &params).unwrap();
        let names = controllers.as_array().unwrap().iter();
        names.map(|one| one["hostnqn"].as_str().unwrap().to_owned()).collect()
    }

    fn target(&self) -> SubsystemAddress {
        self.daemon.target()
    }
}

fn host_named(name: &str) -> Host {
    let name: HostNqn = name.parse().unwrap();
    host().host_nqn(name).build().unwrap()
}

fn is_refused(host: &Host, target: &SubsystemAddress) -> bool {
    match host.connect(*target).wait() {
        Ok(_) => false,
        Err(error) => match error.kind() {
            ErrorKind::ConnectRefused { status, .. } => status.is(Status::CONNECT_INVALID_HOST),
            other => panic!("{other:?}"),
        },
    }
}

fn subsystem(client: &mut ManagementClient) -> Value {
    client.call("nvmf_get_subsystems", &json!({ "nqn": NQN })).unwrap()[0].take()
}

#[test]
fn hosts_come_and_go_while_others_work() {
    let managed = Managed::start();
    let (mut client, target) = (managed.client(), managed.target());
    let [listed, other] = [LISTED, OTHER].map(host_named);
    let namespace = |host: &Host| {
        let controller = host.connect(target).wait().unwrap();
        controller.namespace(Nsid(1)).wait().unwrap()
    };
    let of_listed = namespace(&listed);
    assert!(is_refused(&other, &target));
    let name = |host: &str| json!({ "nqn": NQN, "host": host });
    for _ in 0..3 {
        assert_eq!(client.call("nvmf_subsystem_add_host", &name(OTHER)), Ok(json!(true)));
        let of_other = namespace(&other);
        for one in [&of_listed, &of_other] {
            assert!(one.read_to_vec(4096, 8192).wait().unwrap() == managed.bytes[4096..][..8192]);
        }
        assert_eq!(managed.connected().len(), 2);
        assert_eq!(client.call("nvmf_subsystem_remove_host", &name(OTHER)), Ok(json!(true)));
        eventually("its association has ended", || managed.connected() == [LISTED]);
        // Nothing waits for its timeout: the target will not change its mind by itself.
        let error = of_other.read_to_vec(0, 4096).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectRefused { .. }), "{error}");
        assert!(is_refused(&other, &target));
        // A handle serves again once its host is let in.
        assert_eq!(client.call("nvmf_subsystem_add_host", &name(OTHER)), Ok(json!(true)));
        eventually("the host is back", || of_other.read_to_vec(0, 4096).wait().is_ok());
        assert_eq!(client.call("nvmf_subsystem_remove_host", &name(OTHER)), Ok(json!(true)));
        drop(of_other);
        eventually("its association has ended", || managed.connected() == [LISTED]);
    }
    assert!(of_listed.read_to_vec(0, 4096).wait().unwrap() == managed.bytes[..4096]);
    assert_eq!(listed.counters().connections_lost, 0);

    let any = |allow: bool| json!({ "nqn": NQN, "allow_any_host": allow });
    assert_eq!(client.call("nvmf_subsystem_allow_any_host", &any(true)), Ok(json!(true)));
    assert_eq!(subsystem(&mut client)["allow_any_host"], true);
    let _of_other = namespace(&other);
    assert_eq!(client.call("nvmf_subsystem_allow_any_host", &any(false)), Ok(json!(true)));
    eventually("only the listed one is left", || managed.connected() == [LISTED]);
    assert!(is_refused(&other, &target));
    assert!(of_listed.read_to_vec(0, 4096).wait().unwrap() == managed.bytes[..4096]);
}

/// A namespace is there for the hosts that were named, and for no others.
#[test]
fn a_namespace_is_shown_to_some_hosts() {
    let managed = Managed::start();
    let mut client = managed.client();
    let name = |host: &str| json!({ "nqn": NQN, "host": host });
    assert_eq!(client.call("nvmf_subsystem_add_host", &name(OTHER)), Ok(json!(true)));
    let [listed, other] = [LISTED, OTHER].map(|name| {
        let host = host_named(name);
        let controller = host.connect(managed.target()).wait().unwrap();
        (host, controller)
    });
    let second = managed.folder.path().join("second");
    let bytes = Bytes::new(2).take(SIZE_BYTES);
    std::fs::write(&second, &bytes).unwrap();
    let run = |words: &[&str]| {
        let socket = managed.socket();
        feedrail([&["target"], words, &["--socket", socket.to_str().unwrap()]].concat()).run()
    };
    run(&["add-ns", NQN, second.to_str().unwrap(), "--no-auto-visible"]).success();
    let sees = |one: &(Host, Controller)| one.1.namespace(Nsid(2)).wait().is_ok();
    let seen = |one: &(Host, Controller)| one.1.namespaces().wait().unwrap().len();
    assert!(!sees(&listed) && !sees(&other));
    assert_eq!((seen(&listed), seen(&other)), (1, 1));
    for _ in 0..3 {
        run(&["add-host", NQN, OTHER, "--nsid", "2"]).success();
        assert!(!sees(&listed) && sees(&other));
        assert_eq!((seen(&listed), seen(&other)), (1, 2));
        assert_eq!(subsystem(&mut client)["namespaces"][1]["hosts"], json!([{ "nqn": OTHER }]));
        let namespace = other.1.namespace(Nsid(2)).wait().unwrap();
        assert!(namespace.read_to_vec(0, SIZE_BYTES).wait().unwrap() == bytes);
        let error = run(&["add-host", NQN, OTHER, "--nsid", "2"]).failure();
        assert!(error.contains("is allowed already"), "{error}");
        run(&["remove-host", NQN, OTHER, "--nsid", "2"]).success();
        assert!(!sees(&other));
        let error = namespace.read_to_vec(0, 4096).wait().unwrap_err();
        assert!(!matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    }
    let error = run(&["add-host", NQN, OTHER, "--nsid", "1"]).failure();
    assert!(error.contains("--no-auto-visible"), "{error}");
    let error = run(&["add-host", NQN, OTHER, "--nsid", "7"]).failure();
    assert!(error.contains("no namespace 7"), "{error}");
    assert_eq!(listed.0.counters().connections_lost + other.0.counters().connections_lost, 0);
}

#[test]
fn wrong_changes_change_nothing() {
    let managed = Managed::start();
    let mut client = managed.client();
    let before = subsystem(&mut client);
    for (method, params, message) in [
        ("nvmf_subsystem_add_host", json!({ "nqn": NQN, "host": LISTED }), "is allowed already"),
        ("nvmf_subsystem_remove_host", json!({ "nqn": NQN, "host": OTHER }), "is not among those"),
        (
            "nvmf_subsystem_add_host",
            json!({ "nqn": "nqn.2026-01.a:b", "host": OTHER }),
            "no subsystem",
        ),
        ("nvmf_subsystem_add_host", json!({ "nqn": NQN, "host": "" }), "host: "),
        ("nvmf_subsystem_add_host", json!({ "nqn": NQN }), "missing field `host`"),
        (
            "nvmf_subsystem_add_host",
            json!({ "nqn": NQN, "host": OTHER, "psk": "k" }),
            "unknown field",
        ),
        (
            "nvmf_subsystem_allow_any_host",
            json!({ "nqn": NQN, "allow_any_host": 1 }),
            "invalid type",
        ),
        ("nvmf_subsystem_get_controllers", json!({ "nqn": "nqn.2026-01.a:b" }), "no subsystem"),
    ] {
        let error = client.call(method, &params).unwrap_err();
        assert_eq!(error["code"], -32602, "{method} {params}: {error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{method}: {error}");
    }
    assert_eq!(subsystem(&mut client), before);
}

#[test]
fn the_command_line_lets_hosts_in_and_out() {
    let managed = Managed::start();
    let run = |words: &[&str]| {
        let socket: &Path = &managed.socket();
        feedrail(["target"]).args(words).args(["--socket".as_ref(), socket.as_os_str()]).run()
    };
    run(&["add-host", NQN, OTHER]).success();
    let other = host_named(OTHER);
    other.connect(managed.target()).wait().unwrap();
    run(&["remove-host", NQN, OTHER]).success();
    assert!(is_refused(&other, &managed.target()));
    assert!(run(&["remove-host", NQN, OTHER]).failure().contains("is not among those"));
    run(&["allow-any-host", NQN]).success();
    other.connect(managed.target()).wait().unwrap();
    run(&["allow-any-host", NQN, "--disable"]).success();
    assert!(is_refused(&other, &managed.target()));
}

#[test]
fn changes_are_logged_with_who_made_them() {
    let managed = Managed::start();
    let mut client = managed.client();
    let params = |host: &str| json!({ "nqn": NQN, "host": host });
    client.call("nvmf_subsystem_add_host", &params(OTHER)).unwrap();
    client.call("nvmf_subsystem_add_host", &params("x\n result=\"true\"")).unwrap_err();
    subsystem(&mut client);
    // No level keeps a change out, and neither do others before it.
    client.call("log_set_level", &json!({ "level": "DISABLED" })).unwrap();
    for _ in 0..150 {
        client.call("nvmf_subsystem_remove_host", &params(OTHER)).unwrap();
        client.call("nvmf_subsystem_add_host", &params(OTHER)).unwrap();
    }
    client
        .call("nvmf_subsystem_allow_any_host", &json!({ "nqn": NQN, "allow_any_host": true }))
        .unwrap();
    managed.daemon.wait_for_log("nvmf_subsystem_allow_any_host");
    let log = managed.daemon.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(" INFO audit uid=")).collect();
    assert_eq!(lines.len(), 304, "{log}");
    let uid = rustix::process::geteuid().as_raw();
    let who = format!("uid={uid} pid={} method=", std::process::id());
    assert!(lines.iter().all(|line| line.contains(&who)), "{log}");
    let granted = lines[0].contains(" method=\"nvmf_subsystem_add_host\" params=");
    assert!(granted && lines[0].contains(OTHER) && lines[0].ends_with(" result=\"true\""), "{log}");
    assert!(lines[1].contains(r#"result="error -32602: "#), "{}", lines[1]);
    assert!(!lines[1].contains(r#" result="true""#), "{}", lines[1]);
}
