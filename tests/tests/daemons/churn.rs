//! Random changes of what a target exports while hosts read and write: no byte is wrong, no handle
//! ever reads another file than before, and nothing grows.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use feedrail_initiator::{Controller, Error, ErrorKind, Host, Namespace, SubsystemAddress};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, SetWhenDropped, eventually, host,
    loopback_address, slice_of, write_configuration,
};
use nvme_proto::{Nsid, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Changes in one run; more on demand.
const CHANGES: u64 = 1_000;
const CHANGES_VARIABLE: &str = "FEEDRAIL_CHURN_CHANGES";
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 256;
/// Files that come and go.
const FILES: u64 = 6;
/// NSIDs that they get.
const NSIDS: std::ops::Range<u64> = 3..7;
/// The subsystem of the configuration, and those that come and go.
const SUBSYSTEMS: [&str; 3] = [
    "nqn.2026-01.io.feedrail:permanent",
    "nqn.2026-01.io.feedrail:one",
    "nqn.2026-01.io.feedrail:two",
];
/// Growth of a process that does not leak, in bytes: its allocator keeps some.
const SLACK_BYTES: u64 = 32 << 20;

/// A block whose content tells its file and its number there.
fn block(file: u64, at: u64) -> Vec<u8> {
    let mut bytes = Bytes::new(file << 32 | at).take(BLOCK_BYTES);
    bytes[..8].copy_from_slice(&file.to_le_bytes());
    bytes
}

/// The file that a block is of.
fn file_of(bytes: &[u8], at: u64) -> u64 {
    let file = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == block(file, at), "this is block {at} of no file");
    file
}

struct Churned {
    folder: TempDir,
    head: String,
    daemon: Daemon,
}

impl Churned {
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for file in 0..=FILES + 1 {
            let bytes: Vec<u8> = (0..BLOCKS).flat_map(|at| block(file, at)).collect();
            fs::write(folder.path().join(format!("file-{file}")), bytes).unwrap();
        }
        let head = format!(
            "cores = 2\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{}:4420\"\n[[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"file-{FILES}\"\n\
             [[subsystem.namespace]]\nnsid = 2\npath = \"file-{}\"\nread_only = false\n",
            loopback_address(),
            SUBSYSTEMS[0],
            FILES + 1
        );
        let configuration = write_configuration(folder.path(), &head);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, head, daemon }
    }

    fn path(&self, file: u64) -> PathBuf {
        self.folder.path().join(format!("file-{file}"))
    }

    fn at(&self, subsystem: usize) -> SubsystemAddress {
        let nqn = SUBSYSTEMS[subsystem].parse().unwrap();
        SubsystemAddress { nqn, address: self.daemon.address() }
    }
}

/// Expected exports, as far as they come and go.
#[derive(Default)]
struct Model {
    /// Files by subsystem and NSID.
    files: BTreeMap<(usize, u64), u64>,
    /// Subsystems that were added, and whether they are served and whether any host may use them.
    subsystems: BTreeMap<usize, (bool, bool)>,
    /// Namespaces that no host sees by itself, and whether a host was named for each.
    masked: BTreeMap<(usize, u64), bool>,
}

/// The operator, who knows what each change is to do.
struct Operator<'a> {
    target: &'a Churned,
    client: ManagementClient,
    random: Bytes,
    model: Model,
    /// The host that masked namespaces are shown to.
    guest: String,
}

impl Operator<'_> {
    fn call(&mut self, method: &str, params: &Value) -> bool {
        match self.client.call(method, params) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error["code"], json!(-32602), "{method} {params}: {error}");
                false
            }
        }
    }

    fn change(&mut self) {
        match self.random.below(16) {
            0..=4 => self.add(),
            5 | 6 => self.remove(),
            7 => self.toggle_subsystem(),
            8 => self.toggle_listener(),
            9 => self.toggle_hosts(),
            10 | 11 => self.toggle_visibility(),
            12 | 13 => self.set_ana_state(),
            _ => self.reload(),
        }
        self.check();
    }

    fn any_file(&mut self) -> u64 {
        self.random.below(FILES)
    }

    fn any_nsid(&mut self) -> u64 {
        NSIDS.start + self.random.below(NSIDS.end - NSIDS.start)
    }

    fn add(&mut self) {
        let (file, nsid) = (self.any_file(), self.any_nsid());
        let subsystem = self.random.below(SUBSYSTEMS.len() as u64) as usize;
        let there = subsystem == 0 || self.model.subsystems.contains_key(&subsystem);
        let name = format!("bdev-{file}");
        let path = self.target.path(file);
        let create = json!({ "name": name, "filename": path, "readonly": true });
        // It may be there already.
        self.call("bdev_uring_create", &create);
        let masked = self.random.below(3) == 0;
        let group = 1 + self.random.below(2);
        let namespace = json!({
            "bdev_name": name, "nsid": nsid, "anagrpid": group, "no_auto_visible": masked,
        });
        let params = json!({ "nqn": SUBSYSTEMS[subsystem], "namespace": namespace });
        let in_use = self.model.files.iter().any(|(_, other)| *other == file);
        let taken = self.model.files.contains_key(&(subsystem, nsid));
        let done = self.call("nvmf_subsystem_add_ns", &params);
        // A file that a reload exports has no bdev, and may be exported twice: it is read only.
        assert!(!done || (there && !taken), "{params}");
        assert!(done || !there || taken || in_use, "{params}");
        if done {
            self.model.files.insert((subsystem, nsid), file);
            if masked {
                self.model.masked.insert((subsystem, nsid), false);
            }
        }
    }

    fn toggle_visibility(&mut self) {
        let masked = self.model.masked.len() as u64;
        let chosen = self.random.below(masked + 1) as usize;
        let chosen = self.model.masked.iter().nth(chosen).map(|(place, shown)| (*place, *shown));
        // One that all hosts see, or that is not there.
        let ((subsystem, nsid), shown) = chosen.unwrap_or(((0, 1), false));
        let params = json!({ "nqn": SUBSYSTEMS[subsystem], "nsid": nsid, "host": self.guest });
        let method = if shown { "nvmf_ns_remove_host" } else { "nvmf_ns_add_host" };
        assert_eq!(self.call(method, &params), chosen.is_some(), "{params}");
        if chosen.is_some() {
            self.model.masked.insert((subsystem, nsid), !shown);
        }
    }

    /// Group 1 can always be reached, as the namespaces that are always there have to be.
    fn set_ana_state(&mut self) {
        let subsystem = self.random.below(SUBSYSTEMS.len() as u64) as usize;
        let (state, group) = match self.random.below(5) {
            0 => ("optimized", 1),
            1 => ("non_optimized", 1),
            2 => ("persistent_loss", 2),
            3 => ("non_optimized", 2),
            _ => ("optimized", 2),
        };
        let mut params = self.listener(subsystem);
        params["ana_state"] = state.into();
        params["anagrpid"] = group.into();
        let served = self.model.subsystems.get(&subsystem).is_some_and(|(served, _)| *served);
        let done = self.call("nvmf_subsystem_listener_set_ana_state", &params);
        assert_eq!(done, subsystem == 0 || served, "{params}");
    }

    fn listener(&self, subsystem: usize) -> Value {
        let address = self.target.daemon.address();
        json!({ "nqn": SUBSYSTEMS[subsystem], "listen_address": {
            "trtype": "RDMA", "traddr": address.ip().to_string(), "trsvcid": address.port().to_string(),
        } })
    }

    fn remove(&mut self) {
        let subsystem = self.random.below(SUBSYSTEMS.len() as u64) as usize;
        let nsid = self.any_nsid();
        let params = json!({ "nqn": SUBSYSTEMS[subsystem], "nsid": nsid });
        let done = self.call("nvmf_subsystem_remove_ns", &params);
        assert_eq!(done, self.model.files.remove(&(subsystem, nsid)).is_some(), "{params}");
        self.model.masked.remove(&(subsystem, nsid));
    }

    fn any_added(&mut self) -> usize {
        1 + self.random.below(SUBSYSTEMS.len() as u64 - 1) as usize
    }

    fn toggle_subsystem(&mut self) {
        let subsystem = self.any_added();
        let nqn = SUBSYSTEMS[subsystem];
        if self.model.subsystems.remove(&subsystem).is_some() {
            assert!(self.call("nvmf_delete_subsystem", &json!({ "nqn": nqn })));
            self.model.files.retain(|(of, _), _| *of != subsystem);
            self.model.masked.retain(|(of, _), _| *of != subsystem);
        } else {
            let params = json!({ "nqn": nqn, "allow_any_host": true });
            assert!(self.call("nvmf_create_subsystem", &params));
            self.model.subsystems.insert(subsystem, (false, true));
        }
    }

    fn toggle_listener(&mut self) {
        let subsystem = self.any_added();
        let params = self.listener(subsystem);
        let served = self.model.subsystems.get(&subsystem).map(|(served, _)| *served);
        let method = match served {
            Some(true) => "nvmf_subsystem_remove_listener",
            _ => "nvmf_subsystem_add_listener",
        };
        assert_eq!(self.call(method, &params), served.is_some(), "{params}");
        if let Some((served, _)) = self.model.subsystems.get_mut(&subsystem) {
            *served = !*served;
        }
    }

    fn toggle_hosts(&mut self) {
        let subsystem = self.any_added();
        let any = self.model.subsystems.get(&subsystem).is_some_and(|(_, any)| !any);
        let params = json!({ "nqn": SUBSYSTEMS[subsystem], "allow_any_host": any });
        let done = self.call("nvmf_subsystem_allow_any_host", &params);
        assert_eq!(done, self.model.subsystems.contains_key(&subsystem));
        if let Some(state) = self.model.subsystems.get_mut(&subsystem) {
            state.1 = any;
        }
    }

    /// The configuration has the permanent namespaces and some files; all else goes.
    fn reload(&mut self) {
        let mut text = self.target.head.clone();
        self.model = Model::default();
        let first = self.any_file();
        for (number, nsid) in NSIDS.enumerate() {
            let file = (first + number as u64) % FILES;
            if self.random.below(2) == 0 {
                let path = self.target.path(file).display().to_string();
                text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = \"{path}\"\n");
                self.model.files.insert((0, nsid), file);
            }
        }
        write_configuration(self.target.folder.path(), &text);
        let report = self.client.call("feedrail_reload_config", &json!({})).unwrap();
        assert_eq!(report["warnings"], json!([]));
    }

    /// The target exports what the operator thinks.
    fn check(&mut self) {
        let subsystems = self.client.call("nvmf_get_subsystems", &json!({})).unwrap();
        let mut found = BTreeMap::new();
        for subsystem in subsystems.as_array().unwrap() {
            let place = SUBSYSTEMS.iter().position(|nqn| subsystem["nqn"] == json!(nqn)).unwrap();
            for namespace in subsystem["namespaces"].as_array().unwrap() {
                let name = namespace["name"].as_str().unwrap();
                let file: u64 = name.strip_prefix("file-").unwrap().parse().unwrap();
                let place = (place, namespace["nsid"].as_u64().unwrap());
                found.insert(place, file);
                let shown = self.model.masked.get(&place).map(|shown| match shown {
                    true => json!([{ "nqn": self.guest }]),
                    false => json!([]),
                });
                assert_eq!(namespace.get("hosts"), shown.as_ref(), "{place:?}");
            }
        }
        found.retain(|(_, nsid), _| *nsid >= NSIDS.start);
        assert_eq!(found, self.model.files);
        assert_eq!(subsystems.as_array().unwrap().len(), 1 + self.model.subsystems.len());
    }
}

/// How a command or a Connect may end because of a change.
fn is_change(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Status(status) => {
            status.is(Status::INVALID_NAMESPACE_OR_FORMAT) || status.is(Status::ANA_PERSISTENT_LOSS)
        }
        ErrorKind::ConnectRefused { status, .. } => {
            status.is(Status::CONNECT_INVALID_PARAMETERS)
                || status.is(Status::CONNECT_INVALID_HOST)
                || status.is(Status::CONNECT_CONTROLLER_BUSY)
        }
        ErrorKind::NoNamespace(_) => true,
        ErrorKind::Changed(_) | ErrorKind::ConnectionLost(_) => true,
        _ => false,
    }
}

/// Reads a namespace until it is gone. All of it is of one file.
fn read_until_it_goes(namespace: &Namespace, random: &mut Bytes, most: u64) -> Result<(), Error> {
    let mut known = None;
    for _ in 0..most {
        let at = random.below(BLOCKS);
        let bytes = namespace.read_to_vec(at * BLOCK_BYTES as u64, BLOCK_BYTES).wait()?;
        let file = file_of(&bytes, at);
        assert_eq!(*known.get_or_insert(file), file, "a handle reads another file than before");
    }
    Ok(())
}

/// Opens and reads whatever is there of a subsystem.
fn wander(controller: &Controller, random: &mut Bytes) -> Result<(), Error> {
    let nsids = controller.active_namespaces().wait()?;
    let churned: Vec<Nsid> =
        nsids.into_iter().filter(|nsid| nsid.0 >= NSIDS.start as u32).collect();
    if churned.is_empty() {
        return Ok(());
    }
    let nsid = churned[random.below(churned.len() as u64) as usize];
    let namespace = controller.namespace(nsid).wait()?;
    read_until_it_goes(&namespace, random, 200)
}

struct Threads<'a> {
    target: &'a Churned,
    over: &'a AtomicBool,
    reads: &'a AtomicU64,
}

impl Threads<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Reads what is always there.
    fn read(&self, host: &Host, seed: u64) {
        let controller = self.target.daemon.connect(host);
        let namespace = controller.namespace(Nsid(1)).wait().unwrap();
        let mut random = Bytes::new(seed);
        while !self.is_over() {
            read_until_it_goes(&namespace, &mut random, 10).unwrap();
            self.reads.fetch_add(10, Ordering::Relaxed);
        }
    }

    /// Writes what is always there, and reads it back. The result is what the file holds then.
    fn write(&self, host: &Host) -> Vec<Vec<u8>> {
        let controller = self.target.daemon.connect(host);
        let namespace = controller.namespace(Nsid(2)).wait().unwrap();
        let mut random = Bytes::new(77);
        let mut held: Vec<_> = (0..BLOCKS).map(|at| block(FILES + 1, at)).collect();
        while !self.is_over() {
            let at = random.below(BLOCKS);
            let bytes = random.take(BLOCK_BYTES);
            let offset = at * BLOCK_BYTES as u64;
            namespace.write(offset, slice_of(&bytes)).wait().result.unwrap();
            held[at as usize] = bytes;
            let at = random.below(BLOCKS);
            let found = namespace.read_to_vec(at * BLOCK_BYTES as u64, BLOCK_BYTES).wait().unwrap();
            assert!(found == held[at as usize], "block {at} is not what was written");
        }
        held
    }

    /// Opens and reads what comes and goes: of the first subsystem over one connection.
    fn wander(&self, host: &Host, seed: u64) {
        let permanent = self.target.daemon.connect(host);
        let mut random = Bytes::new(seed);
        while !self.is_over() {
            let subsystem = random.below(SUBSYSTEMS.len() as u64) as usize;
            let done = match subsystem {
                0 => wander(&permanent, &mut random),
                _ => {
                    let connected = host.connect(self.target.at(subsystem)).wait();
                    connected.and_then(|controller| wander(&controller, &mut random))
                }
            };
            if let Err(error) = done {
                assert!(is_change(&error), "{error}");
            }
        }
    }
}

#[test]
fn random_changes_disturb_nobody() {
    let changes = std::env::var(CHANGES_VARIABLE)
        .map_or(CHANGES, |text| text.parse().expect("a number of changes"));
    let target = Churned::start();
    let hosts: Vec<Host> = (0..5).map(|_| host().build().unwrap()).collect();
    let guest = hosts[2].nqn().to_string();
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let threads = Threads { target: &target, over: &over, reads: &reads };
    let threads = &threads;
    let held = thread::scope(|scope| {
        let _over_at_the_end = SetWhenDropped(&over);
        let reader = scope.spawn(|| threads.read(&hosts[0], 1));
        let writer = scope.spawn(|| threads.write(&hosts[1]));
        let mut wanderers = Vec::new();
        for (seed, host) in (2..).zip(&hosts[2..]) {
            wanderers.push(scope.spawn(move || threads.wander(host, seed)));
        }
        let client = ManagementClient::connect(&target.folder.path().join("socket"));
        let random = Bytes::new(5);
        let mut operator =
            Operator { target: &target, client, random, model: Model::default(), guest };
        operator.check();
        (0..changes / 10).for_each(|_| operator.change());
        let before = target.daemon.vitals();
        (0..changes).for_each(|_| operator.change());
        eventually("it is read all the time", || {
            reads.load(Ordering::Relaxed) > 100 || reader.is_finished()
        });
        over.store(true, Ordering::Relaxed);
        wanderers.into_iter().for_each(|thread| thread.join().unwrap());
        reader.join().unwrap();
        let grown = target.daemon.vitals().resident_bytes.saturating_sub(before.resident_bytes);
        assert!(grown < SLACK_BYTES, "{grown} bytes more");
        writer.join().unwrap()
    });
    assert!(fs::read(target.path(FILES + 1)).unwrap() == held.concat(), "a write is lost");
    assert_eq!(hosts[0].counters().connections_lost + hosts[1].counters().connections_lost, 0);
}
