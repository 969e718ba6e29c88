//! Tests of nvmetcli's files.

use super::*;

/// A file of nvmetcli, including settings without a counterpart.
fn saved() -> Value {
    json!({
        "hosts": [{ "nqn": "nqn.2026-01.a:host" }],
        "ports": [
            {
                "addr": {
                    "adrfam": "ipv4", "traddr": "192.0.2.7", "treq": "not specified", "trsvcid": "4420",
                    "trtype": "rdma", "tsas": "none",
                },
                "ana_groups": [
                    { "ana": { "state": "optimized" }, "grpid": 1 },
                    { "ana": { "state": "non-optimized" }, "grpid": 2 },
                ],
                "param": { "inline_data_size": "16384" },
                "portid": 3,
                "referrals": [{
                    "addr": {
                        "adrfam": "ipv4", "traddr": "192.0.2.9", "trsvcid": "8009", "trtype": "rdma",
                    },
                    "enable": 1, "name": "other",
                }],
                "subsystems": ["nqn.2026-01.a:one"],
            },
            { "addr": { "trtype": "tcp" }, "portid": 4, "subsystems": ["nqn.2026-01.a:one"] },
        ],
        "subsystems": [{
            "allowed_hosts": ["nqn.2026-01.a:host"],
            "attr": { "allow_any_host": "0", "model": "Linux", "serial": "3d83", "version": "1.3" },
            "namespaces": [
                {
                    "ana": { "grpid": "2" },
                    "device": {
                        "nguid": "00000000-0000-0000-0000-000000000000", "path": "/dev/null-of-tests",
                        "uuid": "26ffc8ce-73b4-321d-9685-7d7a9872c460",
                    },
                    "enable": 1, "nsid": 1,
                },
                { "device": { "path": "/dev/off" }, "enable": 0, "nsid": 2 },
            ],
            "nqn": "nqn.2026-01.a:one",
        }],
    })
}

fn listener() -> Value {
    json!({ "nqn": "nqn.2026-01.a:one", "listen_address": {
        "trtype": "rdma", "adrfam": "ipv4", "traddr": "192.0.2.7", "trsvcid": "4420",
    } })
}

#[test]
fn a_kernel_configuration_becomes_calls() {
    let config: NvmetConfig = serde_json::from_value(saved()).unwrap();
    let Converted { config: calls, warnings, .. } = config.into_calls(None);
    let nqn = "nqn.2026-01.a:one";
    let path = "/dev/null-of-tests";
    let mut state = listener();
    state["ana_state"] = "non_optimized".into();
    state["anagrpid"] = 2.into();
    let expected = [
        (
            "nvmf_create_subsystem",
            json!({ "nqn": nqn, "allow_any_host": false, "serial_number": "3d83", "model_number": "Linux" }),
        ),
        ("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": "nqn.2026-01.a:host" })),
        ("bdev_uring_create", json!({ "name": path, "filename": path })),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": nqn, "namespace": {
                "bdev_name": path, "nsid": 1, "uuid": "26ffc8ce-73b4-321d-9685-7d7a9872c460",
                "anagrpid": 2,
            } }),
        ),
        ("nvmf_subsystem_add_listener", listener()),
        ("nvmf_subsystem_listener_set_ana_state", state),
        (
            "nvmf_discovery_add_referral",
            json!({ "address": {
                "trtype": "rdma", "adrfam": "ipv4", "traddr": "192.0.2.9", "trsvcid": "8009",
            } }),
        ),
    ];
    let expected = expected.map(|(method, params)| json!({ "method": method, "params": params }));
    assert_eq!(calls, expected);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("namespace 2") && warnings[1].contains("tcp"), "{warnings:?}");
}

#[test]
fn calls_become_a_kernel_configuration_and_calls_again() {
    let config: NvmetConfig = serde_json::from_value(saved()).unwrap();
    let calls = config.into_calls(None).config;
    let Converted { config, warnings, .. } = NvmetConfig::of_calls(calls.iter());
    assert_eq!(warnings, [] as [&str; 0]);
    let written = serde_json::to_value(&config).unwrap();
    assert_eq!(written["hosts"], saved()["hosts"]);
    assert_eq!(written["ports"][0]["ana_groups"], json!([saved()["ports"][0]["ana_groups"][1]]));
    assert_eq!(config.into_calls(None).config, calls);
}

#[test]
fn what_the_kernel_would_do_otherwise_is_told() {
    let nqn = "nqn.2026-01.a:one";
    let add = |name: &str, nsid: u32| {
        let described = json!({ "bdev_name": name, "nsid": nsid, "no_auto_visible": nsid == 3 });
        json!({ "method": "nvmf_subsystem_add_ns", "params": { "nqn": nqn, "namespace": described } })
    };
    let file = json!({ "name": "file", "filename": "/data/file", "readonly": true });
    let hidden = json!({ "name": "hidden", "filename": "/data/hidden" });
    let calls = [
        json!({ "method": "bdev_uring_create", "params": file }),
        json!({ "method": "bdev_uring_create", "params": hidden }),
        json!({ "method": "bdev_null_create", "params": { "name": "null" } }),
        json!({ "method": "nvmf_create_subsystem", "params": { "nqn": nqn, "allow_any_host": true, "deallocate": false } }),
        add("file", 1),
        add("null", 2),
        add("hidden", 3),
        json!({ "method": "feedrail_protect_ns", "params": { "nqn": nqn, "nsid": 1, "protected": true } }),
    ];
    let Converted { config, warnings, .. } = NvmetConfig::of_calls(calls.iter());
    let nsids: Vec<_> = config.subsystems[0].namespaces.iter().map(|one| one.nsid).collect();
    assert_eq!(nsids, [1]);
    let told = [
        "deallocate = false",
        "namespace 2 has no file",
        "namespace 3 is left out",
        "namespaces 1 hosts only read or have protected",
    ];
    for (warning, words) in warnings.iter().zip(told) {
        assert!(warning.contains(words), "{warning}");
    }
    assert_eq!(warnings.len(), told.len());
}

#[test]
fn a_loss_of_thousands_is_one_warning() {
    let mut exporter = Exporter::default();
    (1..=12_000).for_each(|nsid| exporter.lost("nqn", &json!(nsid), OPEN_TO_WRITES));
    let warnings = exporter.finish().warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("1, 2, 3, 4, 5, 6, 7, 8 and 11992 more"), "{warning}");
}

#[test]
fn blocks_of_files_are_those_of_the_kernel() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = kernel_block_size(file.path()).unwrap();
    assert!((512..=4096).contains(&bytes) && bytes.is_power_of_two(), "{bytes}");
    assert_eq!(kernel_block_size(Path::new("/none")), None);
}

#[test]
fn keys_of_hosts_become_files() {
    let mut saved = saved();
    saved["hosts"][0]["dhchap"] =
        json!({ "key": "DHHC-1:00:a:", "hash": "hmac(sha512)", "dhgroup": "null" });
    let config = |saved: &Value| serde_json::from_value::<NvmetConfig>(saved.clone()).unwrap();
    let add_host = |calls: &[Value]| {
        calls.iter().find(|call| call["method"] == "nvmf_subsystem_add_host").cloned()
    };
    let Converted { config: calls, warnings, key_files } = config(&saved).into_calls(None);
    assert_eq!((add_host(&calls), key_files.len()), (None, 0), "not by its name");
    assert!(warnings.iter().any(|warning| warning.contains("--keys-dir")), "{warnings:?}");
    let into = Some(Path::new("/k"));
    let Converted { config: calls, key_files, .. } = config(&saved).into_calls(into);
    let path = "/k/nqn.2026-01.a_host.key";
    assert_eq!(
        add_host(&calls).unwrap()["params"],
        json!({
            "nqn": "nqn.2026-01.a:one", "host": "nqn.2026-01.a:host", "dhchap_key": path,
            "dhchap_digests": ["sha512"],
        })
    );
    assert_eq!(
        (key_files[0].path.as_path(), &*key_files[0].key),
        (Path::new(path), "DHHC-1:00:a:")
    );
    assert!(!format!("{key_files:?}").contains("DHHC"));
    let Converted { config, warnings, .. } = NvmetConfig::of_calls(calls.iter());
    assert!(config.hosts.is_empty() && config.subsystems[0].allowed_hosts.is_empty());
    assert!(warnings.iter().any(|warning| warning.contains("left out")), "{warnings:?}");
}
