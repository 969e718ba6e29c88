//! A target that runs listens at further addresses, and no longer at others, while hosts work.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use feedrail_initiator::{Host, SubsystemAddress};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, eventually, feedrail, host, loopback_address,
    write_configuration,
};
use nvme_proto::Nsid;
use nvme_proto::log::SubsystemType;
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.feedrail:first";
/// UDP port that soft listens at.
const ROCE_PORT: u16 = 4791;

struct Listening {
    folder: TempDir,
    daemon: Daemon,
    bytes: Vec<u8>,
    provider: &'static str,
}

/// A configuration with ports at addresses, each with the id that it is given.
fn configuration(provider: &str, ports: &[(u16, SocketAddr)]) -> String {
    let port = |(id, address): &(u16, SocketAddr)| {
        format!("[[port]]\nid = {id}\naddress = \"{address}\"\n")
    };
    format!(
        "cores = 2\nstate_dir = \"state\"\nprovider = \"{provider}\"\nmanagement = \"socket\"\n{}\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"shard\"\n",
        ports.iter().map(port).collect::<String>()
    )
}

impl Listening {
    /// A target with one subsystem at these ports.
    fn start(provider: &'static str, ports: &[(u16, SocketAddr)]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes = Bytes::new(1).take(SIZE_BYTES);
        fs::write(folder.path().join("shard"), &bytes).unwrap();
        let path = write_configuration(folder.path(), &configuration(provider, ports));
        let daemon = DaemonOptions::default().arg("--config").arg(path).start();
        Self { folder, daemon, bytes, provider }
    }

    fn configure(&self, ports: &[(u16, SocketAddr)]) {
        write_configuration(self.folder.path(), &configuration(self.provider, ports));
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.socket())
    }

    fn call(&self, method: &str, address: SocketAddr) -> Result<Value, String> {
        let result = self.client().call(method, &listener(address));
        result.map_err(|error| error["message"].as_str().unwrap().to_owned())
    }

    /// The target follows its configuration; the changes of addresses, or the reason why not.
    fn reload(&self) -> Result<Vec<(String, String)>, String> {
        let reload = |dry_run: bool| {
            let reload = json!({ "dry_run": dry_run });
            let report = self.client().call("feedrail_reload_config", &reload);
            report.map_err(|error| error["message"].as_str().unwrap().to_owned())
        };
        let foreseen = reload(true);
        let report = reload(false);
        assert_eq!(
            foreseen.as_ref().map(|report| &report["changes"]),
            report.as_ref().map(|report| &report["changes"])
        );
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let changes = report?["changes"].as_array().unwrap().clone();
        Ok(changes.iter().map(|one| (text(&one["change"]), text(&one["address"]))).collect())
    }

    fn reads(&self, host: &Host, address: SocketAddr) -> bool {
        let Ok(controller) = host.connect(at(address)).wait() else { return false };
        let namespace = controller.namespace(Nsid(1)).wait().unwrap();
        assert!(namespace.read_to_vec(0, SIZE_BYTES).wait().unwrap() == self.bytes);
        true
    }

    /// The addresses at which the subsystem is served.
    fn addresses(&self) -> Vec<String> {
        let listeners =
            self.client().call("nvmf_subsystem_get_listeners", &json!({ "nqn": NQN })).unwrap();
        let address = |one: &Value| {
            let text = |key: &str| one["address"][key].as_str().unwrap().to_owned();
            format!("{}:{}", text("traddr"), text("trsvcid"))
        };
        listeners.as_array().unwrap().iter().map(address).collect()
    }
}

fn listener(address: SocketAddr) -> Value {
    json!({ "nqn": NQN, "listen_address": {
        "trtype": "rdma", "adrfam": "ipv4",
        "traddr": address.ip().to_string(), "trsvcid": address.port().to_string(),
    } })
}

fn at(address: SocketAddr) -> SubsystemAddress {
    SubsystemAddress { nqn: NQN.parse().unwrap(), address }
}

fn port(ip: IpAddr, number: u16) -> SocketAddr {
    SocketAddr::new(ip, number)
}

const ADD: &str = "nvmf_subsystem_add_listener";
const REMOVE: &str = "nvmf_subsystem_remove_listener";

#[test]
fn addresses_come_and_go_while_hosts_work() {
    for provider in ["soft", "auto"] {
        let [own, other] = [loopback_address(), loopback_address()];
        let target = Listening::start(provider, &[(1, port(own, 4420))]);
        let host = host().build().unwrap();
        let first = target.daemon.open(&host);
        for round in 0..3 {
            for new in [port(own, 4421), port(other, 4420), port(other, 5000)] {
                assert!(!target.reads(&feedrail_tests::process::host().build().unwrap(), new));
                assert_eq!(target.call(ADD, new), Ok(json!(true)), "{new} in round {round}");
                assert!(target.call(ADD, new).unwrap_err().contains("already"));
                assert!(target.reads(&feedrail_tests::process::host().build().unwrap(), new));
                assert_eq!(target.addresses().len(), 2);
                assert_eq!(target.call(REMOVE, new), Ok(json!(true)));
                assert!(target.call(REMOVE, new).unwrap_err().contains("does not listen"));
            }
            assert!(first.read_to_vec(0, SIZE_BYTES).wait().unwrap() == target.bytes);
        }
        assert_eq!(target.addresses(), [port(own, 4420).to_string()]);
        assert_eq!(host.counters().connections_lost, 0);
        assert!(target.daemon.terminate().0.success());
    }
}

#[test]
fn hosts_are_told_of_addresses_that_come() {
    let [own, other] = [loopback_address(), loopback_address()];
    let target = Listening::start("soft", &[(1, port(own, 4420))]);
    let [first, second] = [port(own, 4420), port(other, 4420)];
    let host = host().build().unwrap();
    let listed = || {
        let log = host.discover(first).wait().unwrap();
        let subsystems = log.entries.iter().filter(|entry| entry.subtype == SubsystemType::NVM);
        let address = |entry| SubsystemAddress::try_from(entry).unwrap().address;
        let mut addresses: Vec<_> = subsystems.map(address).collect();
        addresses.sort();
        addresses
    };
    assert_eq!(listed(), [first]);
    target.call(ADD, second).unwrap();
    let mut both = [first, second];
    both.sort();
    assert_eq!(listed(), both);
    target.call(REMOVE, second).unwrap();
    assert_eq!(listed(), [first]);
}

#[test]
fn addresses_that_cannot_be_listened_on_change_nothing() {
    let [own, taken] = [loopback_address(), loopback_address()];
    let target = Listening::start("soft", &[(1, port(own, 4420))]);
    let holder = UdpSocket::bind((taken, ROCE_PORT)).unwrap();
    let foreign = "192.0.2.1".parse().unwrap();
    for (address, reason) in [
        (port(taken, 4420), "in use"),
        (port(foreign, 4420), "192.0.2.1 is not an address of this machine"),
        (port("0.0.0.0".parse().unwrap(), 4420), "is not the address of an interface"),
    ] {
        let error = target.call(ADD, address).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(target.addresses(), [port(own, 4420).to_string()]);
    drop(holder);
    assert_eq!(target.call(ADD, port(taken, 4420)), Ok(json!(true)));
    assert!(target.reads(&host().build().unwrap(), port(taken, 4420)));
}

#[test]
fn a_reload_follows_the_ports_of_the_configuration() {
    let [own, other, taken] = [(); 3].map(|()| loopback_address());
    let target = Listening::start("soft", &[(1, port(own, 4420)), (2, port(own, 4421))]);
    let host = host().build().unwrap();
    let first = target.daemon.open(&host);
    let added = |address: SocketAddr| ("add_listener".to_owned(), address.to_string());
    let removed = |address: SocketAddr| ("remove_listener".to_owned(), address.to_string());

    target.configure(&[(1, port(own, 4420)), (2, port(other, 4421)), (3, port(other, 4420))]);
    let mut changes = target.reload().unwrap();
    changes.sort();
    let expected = [added(port(other, 4420)), added(port(other, 4421)), removed(port(own, 4421))];
    let mut expected = Vec::from(expected);
    expected.sort();
    assert_eq!(changes, expected);
    assert_eq!(target.reload(), Ok(Vec::new()));
    let fresh = || feedrail_tests::process::host().build().unwrap();
    assert!(target.reads(&fresh(), port(other, 4420)));
    assert!(target.reads(&fresh(), port(other, 4421)));
    assert!(!target.reads(&fresh(), port(own, 4421)), "nothing listens there now");

    // What was added at run time goes, as all that the file does not have.
    target.call(ADD, port(own, 4422)).unwrap();
    assert_eq!(target.reload(), Ok(vec![removed(port(own, 4422))]));
    assert!(!target.reads(&fresh(), port(own, 4422)));

    // Nothing changes if one of the addresses cannot be listened on.
    let _holder = UdpSocket::bind((taken, ROCE_PORT)).unwrap();
    target.configure(&[(1, port(own, 4420)), (4, port(own, 4423)), (5, port(taken, 4420))]);
    let before = target.addresses();
    let report = target.client().call("feedrail_reload_config", &json!({}));
    let error = report.unwrap_err()["message"].as_str().unwrap().to_owned();
    assert!(error.contains("nothing is changed") && error.contains("in use"), "{error}");
    assert_eq!(target.addresses(), before);
    assert!(!target.reads(&fresh(), port(own, 4423)), "it is no longer listened on");
    target.configure(&[(9, port(own, 4420))]);
    let error = target.reload().unwrap_err();
    assert!(error.contains("as port id 1"), "{error}");

    assert!(first.read_to_vec(0, SIZE_BYTES).wait().unwrap() == target.bytes);
    assert_eq!(host.counters().connections_lost, 0);
}

#[test]
fn added_addresses_are_saved() {
    let [own, other] = [loopback_address(), loopback_address()];
    let target = Listening::start("soft", &[(1, port(own, 4420))]);
    target.call(ADD, port(other, 4420)).unwrap();
    let socket = target.socket().display().to_string();
    let save = ["target", "save-config", "--format", "toml", "--socket", &socket];
    let saved = String::from_utf8(feedrail(save).run().success()).unwrap();
    assert!(saved.contains(&port(other, 4420).to_string()), "{saved}");
    let path = write_configuration(target.folder.path(), &saved);
    assert_eq!(target.reload(), Ok(Vec::new()), "it is as the file says");
    assert!(target.reads(&host().build().unwrap(), port(other, 4420)));
    let Listening { daemon, bytes, folder, provider } = target;
    assert!(daemon.terminate().0.success());
    let daemon = DaemonOptions::default().arg("--config").arg(path).start();
    let again = Listening { daemon, bytes, folder, provider };
    assert!(again.reads(&host().build().unwrap(), port(other, 4420)));
}

/// Another process has the port of an address when the target starts, and gives it up later.
#[test]
fn an_address_that_becomes_free_is_listened_on() {
    let [own, taken] = [loopback_address(), loopback_address()];
    let holder = UdpSocket::bind((taken, ROCE_PORT)).unwrap();
    let target = Listening::start(
        "soft",
        &[(1, port(own, 4420)), (2, port(taken, 4420)), (3, port(taken, 4421))],
    );
    let fresh = || host().build().unwrap();
    assert!(target.reads(&fresh(), port(own, 4420)));
    assert!(!target.reads(&fresh(), port(taken, 4420)));
    drop(holder);
    for number in [4420, 4421] {
        eventually("it listens at the free address", || {
            target.reads(&fresh(), port(taken, number))
        });
    }
}

#[test]
fn many_addresses_leave_nothing_behind() {
    let own = loopback_address();
    let target = Listening::start("soft", &[(1, port(own, 4420))]);
    let host = host().build().unwrap();
    let first = target.daemon.open(&host);
    let mut client = target.client();
    let mut round = |number: u16| {
        let address = port(own, 5000 + number % 50);
        client.call(ADD, &listener(address)).unwrap();
        if number.is_multiple_of(20) {
            assert!(target.reads(&feedrail_tests::process::host().build().unwrap(), address));
        }
        client.call(REMOVE, &listener(address)).unwrap();
    };
    (0..60).for_each(&mut round);
    let before = target.daemon.vitals();
    (0..500).for_each(&mut round);
    before.wait_until_restored(16 << 20, || target.daemon.vitals());
    assert!(first.read_to_vec(0, SIZE_BYTES).wait().unwrap() == target.bytes);
    assert_eq!(host.counters().connections_lost, 0);
}
