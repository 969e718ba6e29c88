//! Subsystems and listeners come and go through the management socket while hosts work.

use std::fs;
use std::path::PathBuf;

use feedrail_initiator::{ErrorKind, Host, SubsystemAddress};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, eventually, feedrail, host, loopback_address,
    write_configuration,
};
use nvme_proto::{Nsid, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const FIRST: &str = "nqn.2026-01.io.feedrail:first";
const NEW: &str = "nqn.2026-01.io.feedrail:new";
const SET_ANA: &str = "nvmf_subsystem_listener_set_ana_state";

struct Managed {
    folder: TempDir,
    daemon: Daemon,
    bytes: Vec<u8>,
}

impl Managed {
    /// A target with one subsystem at two ports of an address.
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes = Bytes::new(1).take(SIZE_BYTES);
        fs::write(folder.path().join("shard"), &bytes).unwrap();
        fs::write(folder.path().join("other"), &bytes).unwrap();
        let address = loopback_address();
        let configuration = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{address}:4420\"\n[[port]]\naddress = \"{address}:4421\"\n\
             [[subsystem]]\nnqn = \"{FIRST}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"shard\"\n"
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, daemon, bytes }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.socket())
    }

    fn call(&self, method: &str, params: &Value) -> Result<Value, i64> {
        let result = self.client().call(method, params);
        result.map_err(|error| error["code"].as_i64().unwrap())
    }

    fn address(&self, port: u16) -> std::net::SocketAddr {
        std::net::SocketAddr::new(self.daemon.address().ip(), port)
    }

    fn at(&self, nqn: &str, port: u16) -> SubsystemAddress {
        SubsystemAddress { nqn: nqn.parse().unwrap(), address: self.address(port) }
    }

    fn listener(&self, nqn: &str, port: u16) -> Value {
        let traddr = self.address(port).ip().to_string();
        json!({ "nqn": nqn, "listen_address": {
            "trtype": "rdma", "adrfam": "ipv4", "traddr": traddr, "trsvcid": port.to_string(),
        } })
    }

    /// Adds the file `other` to the new subsystem.
    fn add_file(&self) {
        let filename = self.folder.path().join("other");
        let create = json!({ "name": "other", "filename": filename, "readonly": true });
        assert_eq!(self.call("bdev_uring_create", &create), Ok(json!("other")));
        let add = json!({ "nqn": NEW, "namespace": { "bdev_name": "other" } });
        assert_eq!(self.call("nvmf_subsystem_add_ns", &add), Ok(json!(1)));
    }
}

/// Whether a subsystem is not to be found there.
fn is_unknown(host: &Host, target: SubsystemAddress) -> bool {
    match host.connect(target).wait() {
        Ok(_) => false,
        Err(error) => match error.kind() {
            ErrorKind::ConnectRefused { status, .. } => {
                status.is(Status::CONNECT_INVALID_PARAMETERS)
            }
            other => panic!("{other:?}"),
        },
    }
}

#[test]
fn a_subsystem_comes_and_goes_while_hosts_work() {
    let managed = Managed::start();
    let host = host().build().unwrap();
    let first = managed.daemon.open(&host);
    for round in 0..5 {
        let create =
            json!({ "nqn": NEW, "serial_number": format!("S{round}"), "allow_any_host": true });
        assert_eq!(managed.call("nvmf_create_subsystem", &create), Ok(json!(true)));
        assert_eq!(managed.call("nvmf_create_subsystem", &create), Err(-32602), "it is there");
        assert!(is_unknown(&host, managed.at(NEW, 4420)), "it is served nowhere");
        managed.add_file();
        let listener = managed.listener(NEW, 4421);
        assert_eq!(managed.call("nvmf_subsystem_add_listener", &listener), Ok(json!(true)));
        assert_eq!(managed.call("nvmf_subsystem_add_listener", &listener), Err(-32602));
        assert!(is_unknown(&host, managed.at(NEW, 4420)), "it is served at the other port");
        let controller = host.connect(managed.at(NEW, 4421)).wait().unwrap();
        let namespace = controller.namespace(Nsid(1)).wait().unwrap();
        assert!(namespace.read_to_vec(0, SIZE_BYTES).wait().unwrap() == managed.bytes);
        let shown = managed.call("nvmf_get_subsystems", &json!({ "nqn": NEW })).unwrap();
        assert_eq!(shown[0]["serial_number"].as_str().unwrap().trim(), format!("S{round}"));
        assert_eq!(shown[0]["listen_addresses"].as_array().unwrap().len(), 1);
        assert_eq!(managed.call("nvmf_delete_subsystem", &json!({ "nqn": NEW })), Ok(json!(true)));
        assert_eq!(managed.call("nvmf_delete_subsystem", &json!({ "nqn": NEW })), Err(-32602));
        assert!(is_unknown(&host, managed.at(NEW, 4421)));
        let deleted = managed.call("bdev_uring_delete", &json!({ "name": "other" }));
        assert_eq!(deleted, Ok(json!(true)), "its namespace is closed");
        let read = namespace.read_to_vec(0, 4096).wait();
        assert!(read.is_err(), "its controllers are gone");
        assert!(first.read_to_vec(0, SIZE_BYTES).wait().unwrap() == managed.bytes);
    }
}

#[test]
fn the_associations_of_a_removed_listener_end() {
    let managed = Managed::start();
    let [stays, goes] = [(); 2].map(|()| host().build().unwrap());
    let kept = stays.connect(managed.at(FIRST, 4420)).wait().unwrap();
    let _gone = goes.connect(managed.at(FIRST, 4421)).wait().unwrap();
    let controllers = || {
        let all = managed.call("nvmf_subsystem_get_controllers", &json!({ "nqn": FIRST })).unwrap();
        all.as_array().unwrap().len()
    };
    assert_eq!(controllers(), 2);
    let listener = managed.listener(FIRST, 4421);
    assert_eq!(managed.call("nvmf_subsystem_remove_listener", &listener), Ok(json!(true)));
    assert_eq!(managed.call("nvmf_subsystem_remove_listener", &listener), Err(-32602));
    eventually("one of two is left", || controllers() == 1);
    let namespace = kept.namespace(Nsid(1)).wait().unwrap();
    assert!(namespace.read_to_vec(0, SIZE_BYTES).wait().unwrap() == managed.bytes);
    let other = host().build().unwrap();
    assert!(is_unknown(&other, managed.at(FIRST, 4421)));
    let listeners = managed.call("nvmf_subsystem_get_listeners", &json!({ "nqn": FIRST })).unwrap();
    assert_eq!(listeners.as_array().unwrap().len(), 1);
    assert_eq!(listeners[0]["address"]["trsvcid"], json!("4420"));
    assert_eq!(managed.call("nvmf_subsystem_add_listener", &listener), Ok(json!(true)));
    assert!(other.connect(managed.at(FIRST, 4421)).wait().is_ok());
    assert_eq!(stays.counters().connections_lost, 0);
}

#[test]
fn wrong_parameters_change_nothing() {
    let managed = Managed::start();
    let long = "x".repeat(21);
    let create = |rest: Value| {
        let mut params = json!({ "nqn": NEW });
        params.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        params
    };
    let listen = |key: &str, value: &str| {
        let mut params = managed.listener(FIRST, 4420);
        params["listen_address"][key] = value.into();
        params
    };
    let state = |mut params: Value, state: &str| {
        params["ana_state"] = state.into();
        params
    };
    let group = |group: u32| {
        let mut params = state(managed.listener(FIRST, 4420), "optimized");
        params["anagrpid"] = group.into();
        params
    };
    let cases = [
        ("nvmf_create_subsystem", json!({})),
        ("nvmf_create_subsystem", json!({ "nqn": "x" })),
        ("nvmf_create_subsystem", json!({ "nqn": "nqn.2014-08.org.nvmexpress.discovery" })),
        ("nvmf_create_subsystem", json!({ "nqn": FIRST })),
        ("nvmf_create_subsystem", create(json!({ "serial_number": long }))),
        ("nvmf_create_subsystem", create(json!({ "model_number": "\u{7}" }))),
        ("nvmf_create_subsystem", create(json!({ "max_namespaces": 65_537 }))),
        ("nvmf_create_subsystem", create(json!({ "min_cntlid": 2 }))),
        ("nvmf_create_subsystem", create(json!({ "passthrough": true }))),
        ("nvmf_delete_subsystem", json!({ "nqn": NEW })),
        ("nvmf_subsystem_get_listeners", json!({ "nqn": NEW })),
        ("nvmf_subsystem_add_listener", managed.listener(NEW, 4420)),
        ("nvmf_subsystem_add_listener", managed.listener(FIRST, 0)),
        ("nvmf_subsystem_add_listener", listen("traddr", "0.0.0.0")),
        ("nvmf_subsystem_add_listener", listen("traddr", "224.0.0.1")),
        ("nvmf_subsystem_remove_listener", managed.listener(FIRST, 4422)),
        ("nvmf_subsystem_add_listener", listen("trtype", "TCP")),
        ("nvmf_subsystem_add_listener", listen("adrfam", "IPv6")),
        ("nvmf_subsystem_add_listener", listen("traddr", "localhost")),
        ("nvmf_subsystem_add_listener", listen("trsvcid", "rdma")),
        (SET_ANA, managed.listener(FIRST, 4420)),
        (SET_ANA, state(managed.listener(FIRST, 4420), "best")),
        (SET_ANA, state(managed.listener(NEW, 4420), "optimized")),
        (SET_ANA, state(managed.listener(FIRST, 4422), "optimized")),
        (SET_ANA, group(0)),
        (SET_ANA, group(17)),
    ];
    let before = managed.call("nvmf_get_subsystems", &json!({})).unwrap();
    for (method, params) in cases {
        assert_eq!(managed.call(method, &params), Err(-32602), "{method} {params}");
    }
    assert_eq!(managed.call("nvmf_get_subsystems", &json!({})), Ok(before));
    let few = create(json!({ "max_namespaces": 2, "min_cntlid": 1, "max_cntlid": 65_519 }));
    assert_eq!(managed.call("nvmf_create_subsystem", &few), Ok(json!(true)));
    for (number, expected) in [(1, Ok(json!(1))), (2, Ok(json!(2))), (3, Err(-32602))] {
        let name = format!("null{number}");
        let null = json!({ "name": name, "num_blocks": 8, "block_size": 512 });
        managed.call("bdev_null_create", &null).unwrap();
        let add = json!({ "nqn": NEW, "namespace": { "bdev_name": name } });
        assert_eq!(managed.call("nvmf_subsystem_add_ns", &add), expected);
    }
}

#[test]
fn operators_use_the_command_line() {
    let managed = Managed::start();
    let socket = managed.socket().display().to_string();
    let run = |words: &[&str]| {
        let words = ["target"].into_iter().chain(words.iter().copied());
        feedrail(words.chain(["--socket", &socket])).run()
    };
    let [one, two] = [4420, 4421].map(|port| managed.address(port).to_string());
    let error = run(&["add-subsystem", NEW, "--listen", "192.0.2.1"]).failure();
    assert!(error.contains("192.0.2.1 is not an address of this machine"), "{error}");
    let options = ["--allow-any-host", "--serial", "S1", "--model", "M"];
    run(&[&["add-subsystem", NEW, "--listen", &one][..], &options].concat()).success();
    let path = managed.folder.path().join("other").display().to_string();
    run(&["add-ns", NEW, &path, "--read-only"]).success();
    let host = host().build().unwrap();
    let controller = host.connect(managed.at(NEW, 4420)).wait().unwrap();
    let namespace = controller.namespace(Nsid(1)).wait().unwrap();
    assert!(namespace.read_to_vec(0, SIZE_BYTES).wait().unwrap() == managed.bytes);
    run(&["add-listener", NEW, &two]).success();
    run(&["remove-listener", NEW, &one]).success();
    eventually("it is served at the other port", || {
        host.connect(managed.at(NEW, 4421)).wait().is_ok()
    });
    run(&["remove-subsystem", NEW]).success();
    let error = run(&["remove-subsystem", NEW]).failure();
    assert!(error.contains("there is no subsystem"), "{error}");
}

#[test]
fn many_rounds_leave_nothing_behind() {
    let managed = Managed::start();
    let host = host().build().unwrap();
    let first = managed.daemon.open(&host);
    let mut client = managed.client();
    let null = json!({ "name": "null", "num_blocks": 2048, "block_size": 512 });
    client.call("bdev_null_create", &null).unwrap();
    let listener = managed.listener(NEW, 4420);
    let mut round = |connects: bool| {
        let create = json!({ "nqn": NEW, "allow_any_host": true });
        client.call("nvmf_create_subsystem", &create).unwrap();
        let add = json!({ "nqn": NEW, "namespace": { "bdev_name": "null" } });
        client.call("nvmf_subsystem_add_ns", &add).unwrap();
        client.call("nvmf_subsystem_add_listener", &listener).unwrap();
        if connects {
            let other = feedrail_tests::process::host().build().unwrap();
            let controller = other.connect(managed.at(NEW, 4420)).wait().unwrap();
            let namespace = controller.namespace(Nsid(1)).wait().unwrap();
            assert!(namespace.read_to_vec(0, 4096).wait().unwrap() == [0; 4096]);
        }
        client.call("nvmf_delete_subsystem", &json!({ "nqn": NEW })).unwrap();
    };
    (0..5).for_each(|_| round(true));
    let before = managed.daemon.vitals();
    (0..200).for_each(|number| round(number % 10 == 0));
    before.wait_until_restored(16 << 20, || managed.daemon.vitals());
    assert!(first.read_to_vec(0, SIZE_BYTES).wait().unwrap() == managed.bytes);
    assert_eq!(host.counters().connections_lost, 0);
}

/// A host reads on while its path is inaccessible for a moment.
#[test]
fn a_path_becomes_inaccessible_and_comes_back() {
    let managed = Managed::start();
    let host = host().build().unwrap();
    let namespace = managed.daemon.open(&host);
    let socket = managed.socket().display().to_string();
    let address = managed.address(4420).to_string();
    let ana = |words: &[&str]| {
        let command = [&["target", "ana", FIRST], words, &["--socket", &socket]].concat();
        String::from_utf8(feedrail(command).run().success()).unwrap()
    };
    for (word, name) in [
        ("inaccessible", "inaccessible"),
        ("change", "change"),
        ("persistent-loss", "persistent_loss"),
        ("non-optimized", "non_optimized"),
    ] {
        ana(&[&address, "optimized"]);
        assert_eq!(namespace.read_to_vec(0, SIZE_BYTES).wait().unwrap(), managed.bytes);
        ana(&[&address, word]);
        let table = ana(&[]);
        assert!(table.contains(name) && table.contains("optimized"), "{table}");
        let listeners: Value = serde_json::from_str(&ana(&["-o", "json"])).unwrap();
        let states = &listeners["listeners"][0]["ana_states"];
        assert_eq!(states[0], json!({ "ana_group": 1, "ana_state": name }));
        match word {
            "non-optimized" => {
                assert!(namespace.read_to_vec(0, 4096).wait().unwrap() == managed.bytes[..4096]);
            }
            "persistent-loss" => {
                let error = namespace.read_to_vec(0, 4096).wait().unwrap_err();
                let ErrorKind::Status(status) = error.kind() else { panic!("{error:?}") };
                assert!(status.is(Status::ANA_PERSISTENT_LOSS), "{status}");
            }
            _ => {
                let read = namespace.read_to_vec(4096, 4096);
                ana(&[&address, "optimized"]);
                assert!(read.wait().unwrap() == managed.bytes[4096..8192]);
            }
        }
    }
    let queues = managed.call("nvmf_subsystem_get_qpairs", &json!({ "nqn": FIRST })).unwrap();
    let queues = queues.as_array().unwrap();
    let qids: Vec<_> = queues.iter().map(|queue| queue["qid"].as_u64().unwrap()).collect();
    assert!(qids.len() > 1 && qids.iter().copied().eq(0..qids.len() as u64), "{qids:?}");
    assert_eq!(queues[0]["listen_address"]["trsvcid"], "4420");
    let stats = managed.call("nvmf_get_stats", &json!({})).unwrap();
    assert_eq!(stats["current_admin_qpairs"], 1);
    assert_eq!(stats["current_io_qpairs"], qids.len() - 1);
    let groups = stats["poll_groups"].as_array().unwrap();
    let read: u64 = groups.iter().map(|group| group["bytes_read"].as_u64().unwrap()).sum();
    assert!(groups.len() >= 2 && read >= 4 * SIZE_BYTES as u64, "{stats}");
    ana(&[&address, "optimized"]);
    ana(&[&address, "inaccessible", "--group", "2"]);
    assert!(ana(&[]).contains("1,3,4"), "{}", ana(&[]));
    assert!(namespace.read_to_vec(0, 4096).wait().unwrap() == managed.bytes[..4096]);
}

#[test]
fn hosts_are_referred_to_other_discovery_services() {
    let managed = Managed::start();
    let socket = managed.socket().display().to_string();
    let address = managed.daemon.address();
    let discover = || {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let command = ["discover", "-a", &ip, "-s", &port, "--provider", "soft", "-o", "json"]
            .map(str::to_owned);
        let found: Value = serde_json::from_slice(&feedrail(command).run().success()).unwrap();
        (found["genctr"].clone(), found["records"].as_array().unwrap().clone())
    };
    let change =
        |word: &str| feedrail(["target", word, "192.0.2.7:8009", "--socket", &socket]).run();
    let (before, records) = discover();
    // The subsystem, and the discovery service itself, at both ports.
    let of = |records: &[Value], key: &str| -> Vec<String> {
        records.iter().map(|record| record[key].as_str().unwrap().to_owned()).collect()
    };
    let kinds = ["nvme subsystem", "current discovery subsystem"];
    assert_eq!(of(&records, "subtype"), [kinds[0], kinds[0], kinds[1], kinds[1]]);
    assert_eq!(of(&records, "trsvcid"), ["4420", "4421", "4420", "4421"]);
    let flags = "explicit discovery connections, duplicate discovery information";
    assert_eq!(of(&records, "eflags"), ["none", "none", flags, flags]);
    change("add-referral").success();
    let error = change("add-referral").failure();
    assert!(error.contains("already"), "{error}");
    let (with, records) = discover();
    assert_eq!(records.len(), 5);
    assert_eq!(records[4]["traddr"], "192.0.2.7");
    assert_eq!(records[4]["subnqn"], "nqn.2014-08.org.nvmexpress.discovery");
    assert!(with != before, "the log has changed");
    let referrals = managed.call("nvmf_discovery_get_referrals", &json!({})).unwrap();
    assert_eq!(referrals[0]["address"]["trsvcid"], "8009");
    let other = json!({ "address": referrals[0]["address"], "subnqn": FIRST });
    assert_eq!(managed.call("nvmf_discovery_add_referral", &other), Err(-32602));
    let list = feedrail(["list", "-a", &address.ip().to_string(), "--provider", "soft"]).run();
    assert!(String::from_utf8(list.success()).unwrap().contains("shard"), "referrals are no disks");
    change("remove-referral").success();
    assert!(change("remove-referral").failure().contains("not referred"));
    let (after, left) = discover();
    assert_eq!(left, records[..4]);
    assert!(after.as_u64() > with.as_u64(), "the log has changed again");

    // Two hosts are told, and no other.
    let friends = ["nqn.2026-01.io.feedrail:a", "nqn.2026-01.io.feedrail:b"];
    let only = ["--host", friends[0], "--host", friends[1], "--socket", &socket];
    feedrail(["target", "add-referral", "192.0.2.7:8009"].iter().chain(&only)).run().success();
    let referrals = managed.call("nvmf_discovery_get_referrals", &json!({})).unwrap();
    assert_eq!(referrals[0]["hosts"], json!(friends));
    let saved = managed.call("framework_get_config", &json!({ "name": "nvmf" })).unwrap();
    assert_eq!(saved[0]["params"]["hosts"], json!(friends));
    let told = |name: &str| {
        let host = host().host_nqn(name.parse().unwrap()).build().unwrap();
        let log = host.discover(address).wait().unwrap();
        log.entries.iter().any(|entry| entry.traddr.text() == Some("192.0.2.7"))
    };
    assert!(told(friends[0]) && told(friends[1]) && !told("nqn.2026-01.io.feedrail:c"));
}
