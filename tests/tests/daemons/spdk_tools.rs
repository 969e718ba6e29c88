//! Methods that SPDK's tools call beside those that export: a configuration as SPDK saves it, the
//! log, and questions about the process.

use std::fs;

use feedrail_tests::process::{
    DaemonOptions, ManagementClient, loopback_address, write_configuration,
};
use serde_json::{Value, json};

const NQN: &str = "nqn.2026-01.io.feedrail:from-spdk";

/// A configuration with the parts and parameters that SPDK 26.05 saves for a target with a file and
/// memory.
fn saved_by_spdk(file: &str, address: &str) -> Vec<(&'static str, Value)> {
    let address = json!({
        "trtype": "RDMA", "adrfam": "IPv4", "traddr": address, "trsvcid": "4420",
    });
    vec![
        ("iobuf_set_options", json!({ "small_pool_count": 8192, "large_pool_count": 1024 })),
        ("sock_set_default_impl", json!({ "impl_name": "posix" })),
        ("sock_impl_set_options", json!({ "impl_name": "ssl", "recv_buf_size": 4096 })),
        ("accel_set_options", json!({ "small_cache_size": 128, "sequence_count": 2048 })),
        ("bdev_set_options", json!({ "bdev_io_pool_size": 65535, "bdev_auto_examine": true })),
        ("bdev_raid_set_options", json!({ "process_window_size_kb": 1024 })),
        ("bdev_nvme_set_options", json!({ "action_on_timeout": "none", "timeout_us": 0 })),
        ("bdev_nvme_set_hotplug", json!({ "period_us": 100_000, "enable": false })),
        (
            "bdev_malloc_create",
            json!({
                "name": "Malloc0", "num_blocks": 2048, "block_size": 512,
                "physical_block_size": 512, "uuid": "0b5dc8a3-4a35-4a52-8d6c-6d5f4f7f9d0e",
                "optimal_io_boundary": 0, "md_size": 0, "dif_type": 0,
                "dif_is_head_of_md": false, "dif_pi_format": 0, "numa_id": -1,
            }),
        ),
        (
            "bdev_null_create",
            json!({
                "name": "Null0", "num_blocks": 256, "block_size": 4096,
                "physical_block_size": 4096, "md_size": 0, "dif_type": 0,
                "dif_is_head_of_md": false, "dif_pi_format": 0,
                "uuid": "9d3a9d44-6d53-4ac4-8d35-5bfc8a7c6d10", "preferred_write_granularity": 0,
                "preferred_write_alignment": 0, "optimal_write_size": 0,
                "preferred_unmap_granularity": 0, "preferred_unmap_alignment": 0,
            }),
        ),
        (
            "bdev_aio_create",
            json!({
                "name": "aio0", "block_size": 4096, "filename": file, "readonly": false,
                "fallocate": false, "uuid": "27c1ad65-3b26-4bd8-b7ef-3a3b0a4f8b6f",
                "nowait": false,
            }),
        ),
        ("bdev_wait_for_examine", json!({})),
        ("framework_set_scheduler", json!({ "name": "static" })),
        ("nvmf_set_config", json!({ "discovery_filter": "match_any", "dhchap_digests": [] })),
        ("nvmf_set_max_subsystems", json!({ "max_subsystems": 1024 })),
        ("nvmf_set_crdt", json!({ "crdt1": 0, "crdt2": 0, "crdt3": 0 })),
        (
            "nvmf_create_transport",
            json!({ "trtype": "RDMA", "max_queue_depth": 128, "num_cqe": 4096, "kas": 10 }),
        ),
        (
            "nvmf_create_subsystem",
            json!({
                "nqn": NQN, "allow_any_host": true, "serial_number": "SPDK00000000000001",
                "model_number": "SPDK bdev Controller", "max_namespaces": 32, "min_cntlid": 1,
                "max_cntlid": 65519, "ana_reporting": false, "dmrsl": 0, "wzsl": 0,
                "passthrough": false, "enable_nssr": false, "admin_label": "",
            }),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": {
                "nsid": 1, "bdev_name": "Malloc0", "nguid": "0B5DC8A34A354A528D6C6D5F4F7F9D0E",
                "uuid": "0b5dc8a3-4a35-4a52-8d6c-6d5f4f7f9d0e", "no_auto_visible": false,
            } }),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "nsid": 2, "bdev_name": "aio0" } }),
        ),
        (
            "nvmf_subsystem_add_listener",
            json!({
                "nqn": NQN, "listen_address": address, "secure_channel": false,
                "sock_impl": "posix", "ana_state": "non_optimized",
            }),
        ),
    ]
}

#[test]
fn a_configuration_that_spdk_saved_is_loaded() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let address = loopback_address();
    let configuration = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
         [[port]]\naddress = \"{address}:4420\"\n"
    );
    let configuration = write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    let mut call = |method: &str, params: Value| client.call(method, &params);

    let methods = call("rpc_get_methods", json!({ "current": true })).unwrap();
    let methods = methods.as_array().unwrap();
    let calls = saved_by_spdk(&file.display().to_string(), &address.to_string());
    for (method, params) in &calls {
        assert!(methods.contains(&json!(method)), "rpc.py refuses a file with {method}");
        call(method, params.clone()).unwrap_or_else(|error| panic!("{method}: {error}"));
    }
    let exported = call("nvmf_get_subsystems", json!({ "nqn": NQN })).unwrap();
    let nsids = exported[0]["namespaces"].as_array().unwrap().iter().map(|one| &one["nsid"]);
    assert_eq!(nsids.collect::<Vec<_>>(), [1, 2]);
    let listeners = call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN })).unwrap();
    assert_eq!(listeners[0]["ana_states"][0]["ana_state"], "non_optimized");
    let media = call("bdev_get_bdevs", json!({})).unwrap();
    let sizes = |name: &str| {
        let one = media.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
        (one["block_size"].clone(), one["num_blocks"].clone(), one["uuid"].clone())
    };
    let uuids = ["0b5dc8a3-4a35-4a52-8d6c-6d5f4f7f9d0e", "9d3a9d44-6d53-4ac4-8d35-5bfc8a7c6d10"];
    assert_eq!(sizes("Malloc0"), (json!(512), json!(2048), json!(uuids[0])));
    assert_eq!(sizes("Null0"), (json!(4096), json!(256), json!(uuids[1])));
    assert_eq!(sizes("aio0").1, 256);

    // What would make another target of it is refused by name.
    let metadata = json!({ "name": "m", "num_blocks": 8, "block_size": 512, "md_size": 8 });
    let refused = call("bdev_malloc_create", metadata).unwrap_err();
    assert!(refused.to_string().contains("md_size"), "{refused}");
    let keys = json!({ "nqn": NQN, "host": "nqn.2026-01.io.feedrail:h", "dhchap_key": "key0" });
    let refused = call("nvmf_subsystem_add_host", keys).unwrap_err();
    assert!(refused.to_string().contains("dhchap_key"), "{refused}");
    assert!(call("bdev_raid_create", json!({})).is_err());
    assert!(daemon.terminate().0.success());
}

#[test]
fn the_process_and_its_log_answer_spdks_tools() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let configuration = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\ncores = 2\n\
         [[port]]\naddress = \"{}:4420\"\n",
        loopback_address()
    );
    let configuration = write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
    let mut client = ManagementClient::connect(&folder.path().join("socket"));
    let mut call = |method: &str, params: Value| client.call(method, &params);

    let version = call("spdk_get_version", json!({})).unwrap();
    assert!(version["version"].as_str().unwrap().starts_with("Feedrail v"));
    assert!(version["fields"]["major"].is_u64());
    assert_eq!(call("framework_wait_init", json!({})), Ok(json!(true)));
    let reactors = call("framework_get_reactors", json!({})).unwrap();
    let reactors = reactors["reactors"].as_array().unwrap();
    assert_eq!(reactors.len(), 2);
    assert!(reactors.iter().all(|one| one["busy"].is_u64() && one["lw_threads"][0].is_object()));
    let transports = call("nvmf_get_transports", json!({})).unwrap();
    assert_eq!(transports[0]["trtype"], "RDMA");

    let level = |level: &str| json!({ "level": level });
    assert_eq!(call("log_set_print_level", level("warning")), Ok(json!(true)));
    assert_eq!(call("log_get_print_level", json!({})), Ok(json!("WARNING")));
    call("log_set_level", level("loud")).unwrap_err();
    assert_eq!(call("log_set_flag", json!({ "flag": "rdma" })), Ok(json!(true)));
    assert_eq!(call("log_get_flags", json!({})).unwrap()["rdma"], true);
    assert_eq!(call("log_clear_flag", json!({ "flag": "all" })), Ok(json!(true)));
    assert_eq!(call("log_get_flags", json!({})).unwrap()["rdma"], false);
    // The line of a call without effect is at info, which is not written now.
    assert_eq!(call("nvmf_set_crdt", json!({})), Ok(json!(true)));
    assert_eq!(call("log_set_level", level("INFO")), Ok(json!(true)));
    assert_eq!(call("nvmf_set_config", json!({})), Ok(json!(true)));
    daemon.wait_for_log("nvmf_set_config");
    assert!(!daemon.log().contains("nvmf_set_crdt"));
    assert!(daemon.terminate().0.success());
}
