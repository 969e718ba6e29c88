//! The way of SPDK's users: an empty target is filled through JSON-RPC, its exports are saved, and
//! a second target loads them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, feedrail, host, loopback_address,
    write_configuration,
};
use nvme_proto::Nsid;
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 1 << 20;
const NQN: &str = "nqn.2026-01.io.feedrail:saved";
const OTHER: &str = "nqn.2026-01.io.feedrail:other";

struct Folder(TempDir);

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A target without subsystems.
    fn start(&self, address: std::net::IpAddr) -> Daemon {
        let configuration = format!(
            "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{address}:4420\"\n[[port]]\naddress = \"{address}:4421\"\n"
        );
        let configuration = write_configuration(self.0.path(), &configuration);
        DaemonOptions::default().arg("--config").arg(configuration).start()
    }

    fn client(&self) -> ManagementClient {
        ManagementClient::connect(&self.path("socket"))
    }

    fn exported(&self) -> Value {
        self.client().call("nvmf_get_subsystems", &json!({})).unwrap()
    }

    fn save(&self) -> Vec<u8> {
        let socket = self.path("socket").display().to_string();
        feedrail(["target", "save-config", "--socket", &socket]).run().success()
    }
}

/// The calls of SPDK's `rpc.py`, with the parameters that it sends.
fn calls(folder: &Folder, address: std::net::IpAddr) -> Vec<(&'static str, Value, Value)> {
    let listener = |nqn: &str, port: &str| {
        json!({ "nqn": nqn, "secure_channel": false, "listen_address": {
            "trtype": "rdma", "adrfam": "ipv4", "traddr": address.to_string(), "trsvcid": port,
        } })
    };
    let ana = |state: &str, group: Option<u32>| {
        let mut params = listener(NQN, "4421");
        params.as_object_mut().unwrap().remove("secure_channel");
        params["ana_state"] = state.into();
        if let Some(group) = group {
            params["anagrpid"] = group.into();
        }
        params
    };
    let uuid = "6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b11";
    let nguid = "00112233-4455-6677-8899-aabbccddeeff";
    let done = || json!(true);
    vec![
        (
            "nvmf_create_transport",
            json!({
                "no_srq": false, "c2h_success": true, "trtype": "rdma", "zcopy": false,
                "dif_insert_or_strip": false, "no_wr_batching": false, "disable_mappable_bar0": false,
            }),
            done(),
        ),
        (
            "framework_get_subsystems",
            json!({}),
            json!([
                { "subsystem": "bdev", "depends_on": [] },
                { "subsystem": "keyring", "depends_on": [] },
                { "subsystem": "nvmf", "depends_on": ["bdev", "keyring"] },
            ]),
        ),
        (
            "nvmf_create_subsystem",
            json!({
                "nqn": NQN, "serial_number": "SPDK00000000000001", "model_number": "A \"model\"",
                "allow_any_host": false, "max_namespaces": 32, "min_cntlid": 1, "max_cntlid": 65519,
                "ana_reporting": true, "passthrough": false, "enable_nssr": false,
            }),
            done(),
        ),
        ("nvmf_create_subsystem", json!({ "nqn": OTHER, "allow_any_host": true }), done()),
        (
            "bdev_aio_create",
            json!({
                "name": "aio0", "filename": folder.path("written"), "block_size": 512, "readonly": false, "fallocate": false, "nowait": false,
            }),
            json!("aio0"),
        ),
        (
            "bdev_uring_create",
            json!({
                "name": "uring0", "filename": folder.path("read"), "block_size": 4096, "readonly": true,
                "uuid": uuid,
            }),
            json!("uring0"),
        ),
        (
            "bdev_null_create",
            json!({ "name": "null0", "num_blocks": 2048, "block_size": 4096, "dif_is_head_of_md": false }),
            json!("null0"),
        ),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 256, "block_size": 512, "md_interleave": false, "dif_is_head_of_md": false }),
            json!("Malloc0"),
        ),
        (
            "bdev_malloc_create",
            json!({ "name": "unused", "num_blocks": 8, "block_size": 512 }),
            json!("unused"),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "aio0", "no_auto_visible": false, "hide_metadata": false } }),
            json!(1),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": {
            "bdev_name": "uring0", "nsid": 7, "nguid": nguid, "eui64": "0011223344556677", "anagrpid": 2,
        } }),
            json!(7),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "null0", "no_auto_visible": true } }),
            json!(2),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": OTHER, "namespace": { "bdev_name": "Malloc0" } }),
            json!(1),
        ),
        (
            "nvmf_subsystem_add_host",
            json!({ "nqn": NQN, "host": "nqn.2026-01.io.feedrail:host:a" }),
            done(),
        ),
        (
            "nvmf_subsystem_add_host",
            json!({ "nqn": NQN, "host": "nqn.2026-01.io.feedrail:host:b" }),
            done(),
        ),
        (
            "nvmf_ns_add_host",
            json!({ "nqn": NQN, "nsid": 2, "host": "nqn.2026-01.io.feedrail:host:b" }),
            done(),
        ),
        ("nvmf_subsystem_add_listener", listener(NQN, "4420"), done()),
        ("nvmf_subsystem_add_listener", listener(NQN, "4421"), done()),
        ("nvmf_subsystem_add_listener", listener(OTHER, "4421"), done()),
        (
            "nvmf_discovery_add_referral",
            json!({ "secure_channel": false, "address": {
                "trtype": "rdma", "adrfam": "ipv4", "traddr": "192.0.2.7", "trsvcid": "8009",
            } }),
            done(),
        ),
        ("nvmf_subsystem_listener_set_ana_state", ana("non_optimized", None), done()),
        ("nvmf_subsystem_listener_set_ana_state", ana("inaccessible", Some(2)), done()),
    ]
}

#[test]
fn what_is_saved_is_loaded_by_another_target() {
    let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let bytes = Bytes::new(1).take(SIZE_BYTES);
    for name in ["written", "read"] {
        fs::write(folder.path(name), &bytes).unwrap();
    }
    let address = loopback_address();
    let first = folder.start(address);
    assert_eq!(folder.exported(), json!([]));
    let mut client = folder.client();
    for (method, params, expected) in calls(&folder, address) {
        assert_eq!(client.call(method, &params), Ok(expected), "{method} {params}");
    }
    let exported = folder.exported();
    assert_eq!(exported[0]["namespaces"][2]["nguid"], "00112233445566778899AABBCCDDEEFF");
    assert_eq!(exported[0]["namespaces"][2]["eui64"], "0011223344556677");
    let saved = folder.save();
    let listeners = client.call("nvmf_subsystem_get_listeners", &json!({ "nqn": NQN })).unwrap();
    let states = ["optimized", "non_optimized", "inaccessible", "non_optimized"];
    for (at, group, expected) in [(0, 1, 0), (1, 0, 1), (1, 1, 2), (1, 2, 3)] {
        assert_eq!(listeners[at]["ana_states"][group]["ana_state"], states[expected]);
    }
    assert_eq!(exported[0]["namespaces"][2]["anagrpid"], 2);
    let stats = client.call("bdev_get_iostat", &json!({ "per_channel": false })).unwrap();
    assert_eq!(stats["bdevs"].as_array().unwrap().len(), 4);
    let stats = client.call("nvmf_get_stats", &json!({})).unwrap();
    assert_eq!(stats["current_admin_qpairs"], 0);
    assert_eq!(client.call("nvmf_subsystem_get_qpairs", &json!({ "nqn": NQN })), Ok(json!([])));
    assert!(first.terminate().0.success());

    let second = folder.start(address);
    assert_eq!(folder.exported(), json!([]));
    fs::write(folder.path("saved.json"), &saved).unwrap();
    let socket = folder.path("socket").display().to_string();
    let file = folder.path("saved.json").display().to_string();
    let load = || feedrail(["target", "load-config", &file, "--socket", &socket]).run();
    load().success();
    assert_eq!(folder.exported(), exported);
    assert_eq!(folder.save(), saved);
    let loaded = folder.client().call("nvmf_subsystem_get_listeners", &json!({ "nqn": NQN }));
    assert_eq!(loaded, Ok(listeners));
    let again = String::from_utf8(load().success()).unwrap();
    assert!(again.starts_with("nothing to change: all "), "{again}");
    assert_eq!(folder.exported(), exported);
    // What is refused in the middle leaves nothing behind.
    let zeros = json!({ "name": "n", "num_blocks": 8, "block_size": 512 });
    let partly = json!({ "subsystems": [
        { "subsystem": "sock", "config": [{ "method": "sock_set_default_impl", "params": {} }] },
        { "subsystem": "bdev", "config": [{ "method": "bdev_null_create", "params": zeros }] },
        { "subsystem": "nvmf", "config": [
            { "method": "nvmf_create_subsystem", "params": { "nqn": "nqn.2026-01.org.example:x" } },
            { "method": "nvmf_subsystem_add_ns", "params": {
                "nqn": "nqn.2026-01.org.example:x", "namespace": { "bdev_name": "n" } } },
            { "method": "feedrail_protect_ns", "params": { "nqn": NQN, "nsid": 1, "protected": true } },
            { "method": "nvmf_subsystem_add_ns", "params": {
                "nqn": NQN, "namespace": { "bdev_name": "none", "nsid": 77 } } },
        ] },
    ] });
    let loaded = feedrail(["target", "load-config", "-", "--socket", &socket]);
    let error = loaded.input(partly.to_string()).run().failure();
    assert!(error.contains("no bdev none; nothing was loaded"), "{error}");
    assert_eq!(folder.save(), saved);
    let nqn = OTHER.parse().unwrap();
    let target = feedrail_initiator::SubsystemAddress {
        nqn,
        address: std::net::SocketAddr::new(address, 4421),
    };
    let host = host().build().unwrap();
    let controller = host.connect(target).wait().unwrap();
    let memory = controller.namespace(Nsid(1)).wait().unwrap();
    assert!(memory.read_to_vec(0, 4096).wait().unwrap() == [0; 4096], "memory is not saved");
    assert!(second.terminate().0.success());
}

/// Namespaces of the configuration file have no bdev until they are loaded.
#[test]
fn a_configuration_file_is_saved_too() {
    let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    fs::write(folder.path("read"), Bytes::new(1).take(SIZE_BYTES + 7)).unwrap();
    let address = loopback_address();
    let configuration = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
         [[port]]\naddress = \"{address}:4420\"\n[[port]]\naddress = \"{address}:4421\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"read\"\n\
         [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = \"1MiB\"\nlba_bytes = 4096\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"1MiB\"\n\
         [[subsystem]]\nnqn = \"{OTHER}\"\nallow_any_host = true\n"
    );
    let configuration = write_configuration(folder.0.path(), &configuration);
    let first = DaemonOptions::default().arg("--config").arg(configuration).start();
    let exported = folder.exported();
    let saved: Value = serde_json::from_slice(&folder.save()).unwrap();
    assert!(first.terminate().0.success());
    let second = folder.start(address);
    let mut client = folder.client();
    for part in saved["subsystems"].as_array().unwrap() {
        for call in part["config"].as_array().unwrap() {
            client.call(call["method"].as_str().unwrap(), &call["params"]).unwrap();
        }
    }
    assert_eq!(without_names(folder.exported()), without_names(exported));
    assert!(second.terminate().0.success());
}

/// Subsystems without the names of their media, which only those have that were added at run time.
fn without_names(mut subsystems: Value) -> Value {
    for subsystem in subsystems.as_array_mut().unwrap() {
        for namespace in subsystem["namespaces"].as_array_mut().unwrap() {
            let namespace = namespace.as_object_mut().unwrap();
            namespace.remove("bdev_name");
            namespace.remove("name");
        }
    }
    subsystems
}

/// A target of a file with comments is changed in every way that a file can say, and saved as a
/// file: reading that again changes nothing, and neither does a new start.
#[test]
fn what_was_changed_is_saved_as_a_configuration_file() {
    let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    fs::create_dir(folder.path("shards")).unwrap();
    let bytes = Bytes::new(1).take(SIZE_BYTES);
    for name in ["read", "gone", "written", "hidden", "shards/a", "shards/b"] {
        fs::write(folder.path(name), &bytes).unwrap();
    }
    let address = loopback_address();
    let nqns = ["third", "fourth"].map(|name| format!("nqn.2026-01.io.feedrail:{name}"));
    let configuration = format!(
        "# Of the storage team.\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\n\
         [[port]]\naddress = \"{address}:4420\" # the first link\n\n\
         [[port]]\naddress = \"{address}:4421\"\nsubsystems = [\"{NQN}\"]\n\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\n\
         [[subsystem.namespace]]\npath = \"gone\"\n\n\
         [[subsystem.namespace]]\n# It is never written.\npath = \"read\"\nread_only = true\n\n\
         [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = \"1MiB\"\n\n\
         [[subsystem.directory]]\npath = \"shards\"\n\n\
         [[subsystem]]\nnqn = \"{OTHER}\"\nallow_any_host = true\n\n\
         [limits]\nqueue_depth = 64\n"
    );
    let file = write_configuration(folder.0.path(), &configuration);
    let first = DaemonOptions::default().arg("--config").arg(&file).start();
    let socket = folder.path("socket").display().to_string();
    let target = |arguments: &[&str]| {
        let at_socket = ["--socket", &socket];
        feedrail(["target"].iter().chain(arguments).chain(&at_socket))
    };
    let save = || target(&["save-config", "--format", "toml"]).run();
    let unchanged = String::from_utf8(save().success()).unwrap();
    assert_eq!(unchanged, configuration, "a file that says what is exported stays as it is");

    let path = |name: &str| folder.path(name).display().to_string();
    let host = "nqn.2026-01.io.feedrail:host:a";
    let at = |port: u16| format!("{address}:{port}");
    for arguments in [
        &["remove-ns", NQN, "1"][..],
        &["add-ns", NQN, &path("written"), "--block-size", "4096", "--ana-group", "3"],
        &["add-ns", NQN, &path("hidden"), "--nsid", "40", "--read-only", "--no-auto-visible"],
        &["add-host", NQN, host, "--nsid", "40"],
        &["remove-subsystem", OTHER],
        &["add-subsystem", &nqns[0], "--serial", "0815", "--model", "A \"model\""],
        &["add-subsystem", &nqns[1]],
        &["add-host", &nqns[0], host],
        &["allow-any-host", &nqns[1]],
        &["add-ns", &nqns[0], &path("gone")],
        &["add-listener", &nqns[0], &at(4421)],
        &["remove-listener", NQN, &at(4420)],
        &["ana", NQN, &at(4421), "non-optimized"],
        &["add-referral", "192.0.2.7"],
    ] {
        target(arguments).run().success();
    }
    let exported = folder.exported();
    let output = save();
    assert!(output.stderr.contains("ANA states of"), "{}", output.stderr);
    assert!(output.stderr.contains("referrals are not saved"), "{}", output.stderr);
    let saved = String::from_utf8(output.success()).unwrap();
    for kept in ["# Of the storage team.", "# the first link", "# It is never written.", "= 64"] {
        assert!(saved.contains(kept), "{kept}: {saved}");
    }
    assert!(!saved.contains(OTHER) && !saved.contains("path = \"gone\""), "{saved}");
    fs::write(&file, &saved).unwrap();
    let reloaded = String::from_utf8(target(&["reload"]).run().success()).unwrap();
    assert_eq!(reloaded, "nothing to change\n", "{saved}");
    assert_eq!(save().success(), saved.as_bytes());
    assert!(first.terminate().0.success());
    let second = DaemonOptions::default().arg("--config").arg(&file).start();
    assert_eq!(without_names(folder.exported()), without_names(exported));

    // A file of a directory cannot be left out.
    target(&["remove-ns", NQN, "4"]).run().success();
    let output = save();
    assert!(output.stderr.contains("will export it again"), "{}", output.stderr);
    assert!(second.terminate().0.success());
}

/// The namespace of a random configuration, and whether it is write protected afterwards.
fn random_namespace(folder: &Folder, bytes: &mut Bytes, nsid: u64) -> (String, bool) {
    let mut text = format!("[[subsystem.namespace]]\nnsid = {nsid}\n");
    match bytes.below(4) {
        0 => text += "kind = \"null\"\nsize_bytes = \"1MiB\"\n",
        1 => text += "kind = \"memory\"\nsize_bytes = \"1MiB\"\n",
        _ => {
            let name = format!("file{nsid}");
            fs::write(folder.path(&name), [7; SIZE_BYTES]).unwrap();
            text += &format!("path = \"{}\"\n", folder.path(&name).display());
            for word in ["always", "never"] {
                if text.lines().all(|line| !line.starts_with("direct_io")) && bytes.below(3) == 0 {
                    text += &format!("direct_io = \"{word}\"\n");
                }
            }
        }
    }
    let writable = bytes.below(2) == 0;
    text += &format!("read_only = {}\n", !writable);
    for line in [
        "lba_bytes = 512",
        "content_id = \"v1\"",
        "description = \"tokens of GPT-2\"",
        "ana_group = 3",
        "nguid = \"00112233445566778899aabbccddeeff\"",
        "eui64 = \"0011223344556677\"",
        "visible_to = [\"nqn.2026-01.io.feedrail:host:a\"]",
    ] {
        let unique = !(line.starts_with("nguid") || line.starts_with("eui64")) || nsid == 1;
        if unique && bytes.below(3) == 0 {
            text += &format!("{line}\n");
        }
    }
    if bytes.below(3) == 0 {
        text += &format!("name = \"name {nsid}\"\n");
    }
    (text, writable && bytes.below(2) == 0)
}

/// The words of the warnings about a property that is lost.
const LOSSES: [(&str, &str); 7] = [
    ("read_only", "nvmet lets them write"),
    ("write_protected", "nvmet lets them write"),
    ("block_size", "blocks of another size"),
    ("name", "lose their name"),
    ("content_id", "content_id"),
    ("description", "lose their description"),
    ("direct_io", "direct_io"),
];

/// Each property of a subsystem and its namespaces is loaded as it was saved, or its loss is told.
fn is_saved_or_told(before: &Value, after: &Value, told: &str) {
    let deallocate =
        before["deallocate"] == after["deallocate"] || told.contains("deallocate = false");
    assert!(deallocate, "{told}");
    for namespace in before["namespaces"].as_array().unwrap() {
        let nsid = &namespace["nsid"];
        let found = after["namespaces"].as_array().unwrap().iter().find(|one| one["nsid"] == *nsid);
        let Some(found) = found else {
            assert!(told.contains(&format!("namespace {nsid}")), "{nsid}: {told}");
            continue;
        };
        for (key, value) in
            namespace.as_object().unwrap().iter().filter(|(key, _)| *key != "bdev_name")
        {
            let words = LOSSES.iter().find(|(lost, _)| lost == key).map(|(_, words)| *words);
            let told = words.is_some_and(|words| told.contains(words));
            assert!(found[key] == *value || told, "{nsid}: {key} {value} became {}", found[key]);
        }
    }
}

#[test]
fn random_exports_are_saved_or_their_losses_are_told() {
    for seed in 1..=4 {
        println!("seed {seed}");
        let mut bytes = Bytes::new(seed);
        let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let address = loopback_address();
        let deallocate = bytes.below(2) == 0;
        let mut text = format!(
            "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{address}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\ndeallocate = {deallocate}\n"
        );
        let random = (1..=5).map(|nsid| random_namespace(&folder, &mut bytes, nsid));
        let (namespaces, protected): (Vec<_>, Vec<_>) = random.unzip();
        text.extend(namespaces);
        let file = write_configuration(folder.0.path(), &text);
        let first = DaemonOptions::default().arg("--config").arg(&file).start();
        for (nsid, _) in (1..).zip(protected).filter(|(_, protected)| *protected) {
            let params = json!({ "nqn": NQN, "nsid": nsid, "protected": true });
            folder.client().call("feedrail_protect_ns", &params).unwrap();
        }
        let exported = folder.exported()[0].clone();
        let socket = folder.path("socket").display().to_string();
        let save = |format: &str| {
            feedrail(["target", "save-config", "--format", format, "--socket", &socket]).run()
        };
        let saved = ["spdk", "nvmetcli", "toml"].map(save);
        assert!(first.terminate().0.success());
        let [spdk, nvmetcli, toml] = saved.map(|output| (output.stderr.clone(), output.success()));
        for (told, saved) in [spdk, nvmetcli] {
            let empty = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
            let second = empty.start(address);
            let socket = empty.path("socket").display().to_string();
            feedrail(["target", "load-config", "-", "--socket", &socket])
                .input(saved)
                .run()
                .success();
            is_saved_or_told(&exported, &empty.exported()[0], &told);
            assert!(second.terminate().0.success());
        }
        fs::write(&file, toml.1).unwrap();
        let again = DaemonOptions::default().arg("--config").arg(&file).start();
        is_saved_or_told(&exported, &folder.exported()[0], &toml.0);
        assert!(again.terminate().0.success());
    }
}

/// The kernel's target and this one export the same files to the same hosts.
#[test]
fn a_configuration_of_the_kernel_is_loaded_and_saved() {
    let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    fs::write(folder.path("disk"), Bytes::new(1).take(SIZE_BYTES)).unwrap();
    let address = loopback_address();
    let daemon = folder.start(address);
    let uuid = "26ffc8ce-73b4-321d-9685-7d7a9872c460";
    let host = "nqn.2026-01.io.feedrail:host:a";
    let of_kernel = json!({
        "hosts": [{ "nqn": host }],
        "ports": [{
            "addr": {
                "adrfam": "ipv4", "traddr": address.to_string(), "treq": "not specified",
                "trsvcid": "4420", "trtype": "rdma",
            },
            "ana_groups": [{ "ana": { "state": "non-optimized" }, "grpid": 1 }],
            "portid": 1, "referrals": [], "subsystems": [NQN],
        }],
        "subsystems": [{
            "allowed_hosts": [host],
            "attr": { "allow_any_host": "0", "model": "Linux", "serial": "3d83c78b" },
            "namespaces": [{
                "device": { "path": folder.path("disk"), "uuid": uuid }, "enable": 1, "nsid": 7,
            }],
            "nqn": NQN,
        }],
    });
    let socket = folder.path("socket").display().to_string();
    let load = || {
        let program = feedrail(["target", "load-config", "-", "--socket", &socket]);
        program.input(of_kernel.to_string()).run()
    };
    load().success();
    let exported = folder.exported();
    assert_eq!(exported[0]["hosts"], json!([{ "nqn": host }]));
    assert_eq!(exported[0]["namespaces"][0]["uuid"], uuid);
    let file_system = fs::metadata(folder.path("disk")).unwrap().blksize();
    assert_eq!(exported[0]["namespaces"][0]["block_size"], file_system.min(4096));
    let save = ["target", "save-config", "--format", "nvmetcli", "--socket", &socket];
    let saved: Value = serde_json::from_slice(&feedrail(save).run().success()).unwrap();
    let mut expected = of_kernel.clone();
    expected["subsystems"][0]["namespaces"][0]["device"]["path"] =
        folder.path("disk").display().to_string().into();
    assert_eq!(saved, expected);
    assert!(load().success().starts_with(b"nothing to change"));
    assert!(daemon.terminate().0.success());
}

#[test]
fn what_is_no_saved_configuration_is_refused() {
    let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let _daemon = folder.start(loopback_address());
    let socket = folder.path("socket").display().to_string();
    let load = |text: &str| {
        let program = feedrail(["target", "load-config", "-", "--socket", &socket]);
        program.input(text).run().failure()
    };
    for (text, expected) in [
        ("", "EOF"),
        ("[]", "no list \"subsystems\""),
        ("{\"subsystems\":[{\"config\":[{\"method\":\"bdev_nvme_attach\"}]}]}", "bdev_nvme_attach"),
        ("{\"subsystems\":[{\"config\":[{}]}]}", "missing field `method`"),
    ] {
        let error = load(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let wrong = folder.client().call("framework_get_config", &json!({ "name": "sock" }));
    assert_eq!(wrong.unwrap_err()["code"], json!(-32602));
    assert_eq!(folder.exported(), json!([]));
}
