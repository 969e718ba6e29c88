//! Tests of the socket with well-behaved and misbehaving clients.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::applied_config::AppliedConfig;
use crate::config::Config;
use crate::driver::assembly::Assembly;
use crate::inventory::Inventory;
use crate::inventory::open::OpenPurpose;

const NQN: &str = "nqn.2026-01.io.feedrail:t";

/// Starts a socket for all methods.
fn start(path: &Path, listeners: Arc<Listeners>) -> Result<Management, SocketError> {
    Management::start(path, SocketRole::Full, Arc::new(Methods::new(listeners, None)))
}

struct Running {
    folder: TempDir,
    management: Management,
}

impl Running {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!(
            "state_dir = \"state\"\nmanagement = \"socket\"\n[[port]]\naddress = \"127.0.0.1\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n"
        );
        let config = Config::from_toml(&folder.path().join("t.toml"), &text).expect("valid");
        let path = config.management.clone().expect("it is configured");
        let listeners = listeners(&config, OpenPurpose::Serve);
        let management = start(&path, listeners).expect("it listens");
        Self { folder, management }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).expect("it listens")
    }
}

/// Sends a request to a target, and reads the response.
fn ask(stream: &mut UnixStream, request: &Value) -> Value {
    stream.write_all(request.to_string().as_bytes()).expect("sent");
    receive(stream)
}

fn receive(stream: &mut UnixStream) -> Value {
    let mut values = serde_json::Deserializer::from_reader(&*stream).into_iter();
    values.next().expect("a response").expect("JSON")
}

fn call(stream: &mut UnixStream, method: &str, params: Value) -> Result<Value, i64> {
    let request = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
    let mut response = ask(stream, &request);
    assert_eq!((&response["jsonrpc"], &response["id"]), (&json!("2.0"), &json!(7)));
    match response["error"]["code"].as_i64() {
        Some(code) => Err(code),
        None => Ok(response["result"].take()),
    }
}

fn nsids(stream: &mut UnixStream) -> Vec<u64> {
    let subsystems = call(stream, "nvmf_get_subsystems", json!({})).expect("there are some");
    let namespaces = subsystems[0]["namespaces"].as_array().expect("a list");
    namespaces.iter().map(|one| one["nsid"].as_u64().expect("a number")).collect()
}

#[test]
fn namespaces_come_and_go() {
    let running = Running::start();
    let mut client = running.connect();
    let file = running.folder.path().join("file");
    std::fs::write(&file, [1; 8192]).expect("written");
    let create = json!({ "name": "disk", "filename": file, "block_size": 512 });
    assert_eq!(call(&mut client, "bdev_uring_create", create.clone()), Ok(json!("disk")));
    assert_eq!(call(&mut client, "bdev_uring_create", create), Err(-32602), "the name is taken");
    let malloc = json!({ "num_blocks": 8, "block_size": 512 });
    assert_eq!(call(&mut client, "bdev_malloc_create", malloc), Ok(json!("Malloc0")));
    let add = |name: &str| json!({ "nqn": NQN, "namespace": { "bdev_name": name } });
    assert_eq!(call(&mut client, "nvmf_subsystem_add_ns", add("disk")), Ok(json!(2)));
    assert_eq!(call(&mut client, "nvmf_subsystem_add_ns", add("disk")), Err(-32602));
    assert_eq!(call(&mut client, "nvmf_subsystem_add_ns", add("Malloc0")), Ok(json!(3)));
    assert_eq!(nsids(&mut client), [1, 2, 3]);
    assert_eq!(call(&mut client, "bdev_uring_delete", json!({ "name": "disk" })), Err(-32602));
    let remove = |nsid: u32| json!({ "nqn": NQN, "nsid": nsid });
    assert_eq!(call(&mut client, "nvmf_subsystem_remove_ns", remove(2)), Ok(json!(true)));
    assert_eq!(call(&mut client, "nvmf_subsystem_remove_ns", remove(2)), Err(-32602));
    assert_eq!(nsids(&mut client), [1, 3]);
    assert_eq!(call(&mut client, "bdev_aio_delete", json!({ "name": "disk" })), Err(-32602));
    assert_eq!(call(&mut client, "bdev_uring_delete", json!({ "name": "disk" })), Ok(json!(true)));
    assert_eq!(call(&mut client, "nvmf_subsystem_add_ns", add("disk")), Err(-32602));
    assert_eq!(call(&mut client, "nvmf_subsystem_remove_ns", remove(1)), Ok(json!(true)));
    assert_eq!(nsids(&mut client), [3]);
}

#[test]
fn wrong_parameters_change_nothing() {
    let running = Running::start();
    let mut client = running.connect();
    let null = json!({ "name": "null", "num_blocks": 8, "block_size": 512 });
    assert_eq!(call(&mut client, "bdev_null_create", null), Ok(json!("null")));
    let cases = [
        ("nvmf_subsystem_add_ns", json!({}), -32602),
        ("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": 7 }), -32602),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": "x", "namespace": { "bdev_name": "null" } }),
            -32602,
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "null", "anagrpid": 17 } }),
            -32602,
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "null", "nsid": 1 } }),
            -32602,
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "null", "nsid": 65_537 } }),
            -32602,
        ),
        ("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 0 }), -32602),
        ("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": -1 }), -32602),
        ("nvmf_subsystem_remove_ns", json!({ "nqn": NQN, "nsid": 1, "force": true }), -32602),
        ("bdev_aio_create", json!({ "name": "a", "filename": "relative" }), -32602),
        ("bdev_aio_create", json!({ "name": "a", "filename": "/no/such/file" }), -32602),
        ("bdev_null_create", json!({ "name": "a", "num_blocks": 0, "block_size": 512 }), -32602),
        ("bdev_null_create", json!({ "name": "a", "num_blocks": 1, "block_size": 513 }), -32602),
        (
            "bdev_null_create",
            json!({ "name": "a", "num_blocks": u64::MAX, "block_size": 512 }),
            -32602,
        ),
        ("bdev_malloc_create", json!({ "num_blocks": 1_u64 << 53, "block_size": 512 }), -32603),
        ("nvmf_get_subsystems", json!({ "nqn": "nqn.2026-01.io.feedrail:other" }), -32602),
        ("no_such_method", json!({}), -32601),
    ];
    for (method, params, code) in cases {
        assert_eq!(call(&mut client, method, params.clone()), Err(code), "{method} {params}");
    }
    assert_eq!(nsids(&mut client), [1]);
    let bdevs = call(&mut client, "bdev_get_bdevs", json!({})).expect("a list");
    assert_eq!(bdevs.as_array().map(Vec::len), Some(1), "{bdevs}");
}

#[test]
fn all_methods_are_listed() {
    let running = Running::start();
    let listed = call(&mut running.connect(), "rpc_get_methods", json!({})).expect("a list");
    assert!(listed.as_array().is_some_and(|list| list.contains(&json!("nvmf_get_subsystems"))));
}

#[test]
fn only_the_user_may_connect() {
    let running = Running::start();
    let mode = std::fs::metadata(running.path()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = start(&running.path(), other_listeners()).expect_err("taken");
    assert!(matches!(again, SocketError::InUse(_)), "{again}");
    let path = running.path();
    drop(running.management);
    assert!(!path.exists());
}

/// Listeners of a target that nobody drives.
fn listeners(config: &Config, purpose: OpenPurpose) -> Arc<Listeners> {
    let inventory = Inventory::open(config, purpose).expect("opened");
    let Assembly { associations, devices, .. } = Assembly::new(inventory, 1).expect("memory");
    let applied = Arc::new(AppliedConfig::new(config.clone()).expect("a descriptor"));
    Arc::new(Listeners::new(associations, config, devices, applied))
}

fn other_listeners() -> Arc<Listeners> {
    let text = "[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:u\"\n\
                allow_any_host = true\n[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n";
    let config = Config::from_toml(Path::new("/t.toml"), text).expect("valid");
    listeners(&config, OpenPurpose::Check)
}

#[test]
fn a_socket_that_was_left_behind_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let management = start(&path, other_listeners()).expect("it was left behind");
    drop(management);
    std::fs::write(&path, "").expect("written");
    let error = start(&path, other_listeners()).expect_err("a file");
    assert!(matches!(error, SocketError::NoSocket(_)), "{error}");
}

#[test]
fn hostile_clients_cost_only_themselves() {
    let running = Running::start();
    let mut patient = running.connect();
    assert_eq!(nsids(&mut patient), [1]);
    // Half a request from each, and more clients than there are places.
    let halves: Vec<_> = (0..3 * MAX_CLIENTS)
        .map(|_| {
            let mut client = running.connect();
            client.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"").expect("sent");
            client
        })
        .collect();
    // One client sends a request and never reads.
    let mut deaf = running.connect();
    deaf.set_nonblocking(true).expect("set");
    let request = br#"{"jsonrpc":"2.0","id":1,"method":"nvmf_get_subsystems"}"#;
    while deaf.write_all(request).is_ok() {}
    let mut client = running.connect();
    assert_eq!(nsids(&mut client), [1]);
    for (garbage, code) in [(&b"nonsense"[..], -32700), (b"{]", -32700), (b"[]", -32600)] {
        let mut client = running.connect();
        client.write_all(garbage).expect("sent");
        assert_eq!(receive(&mut client)["error"]["code"], json!(code));
    }
    let mut endless = running.connect();
    while endless.write_all(&[b'['; 4096]).is_ok() {}
    assert_eq!(nsids(&mut client), [1]);
    drop(halves);
}

#[test]
fn requests_in_one_write_are_answered_in_order() {
    let running = Running::start();
    let mut client = running.connect();
    let silent = r#"{"jsonrpc":"2.0","method":"rpc_get_methods"}"#;
    let request = |id: u32| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"x\"}}");
    let all = [request(1), silent.to_owned(), request(2)].concat();
    client.write_all(all.as_bytes()).expect("sent");
    let mut responses = serde_json::Deserializer::from_reader(&client).into_iter::<Value>();
    for id in [1, 2] {
        let response = responses.next().expect("one each").expect("JSON");
        assert_eq!((&response["id"], &response["error"]["code"]), (&json!(id), &json!(-32601)));
    }
}

#[test]
fn a_batch_has_one_response() {
    let running = Running::start();
    let mut stream = running.connect();
    let of = |method: &str, id: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method });
    let notice = json!({ "jsonrpc": "2.0", "method": "spdk_get_version" });
    let batch = json!([of("framework_wait_init", json!(1)), notice, of("missing", json!("b"))]);
    let responses = ask(&mut stream, &batch);
    assert_eq!(responses[0], json!({ "jsonrpc": "2.0", "id": 1, "result": true }));
    assert_eq!(
        (&responses[1]["id"], &responses[1]["error"]["code"]),
        (&json!("b"), &json!(-32601))
    );
    assert!(responses.get(2).is_none(), "{responses}");
    // Only requests with an id get a response.
    stream.write_all(json!([notice]).to_string().as_bytes()).expect("sent");
    assert_eq!(ask(&mut stream, &of("framework_wait_init", json!(2)))["id"], 2);
}
