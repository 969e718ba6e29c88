//! A namespace over several ports of a target, and over two targets that serve it together.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, Entry, FollowedPaths, Grant, Host, Namespace, RangeCompletion, RdmaProvider,
    Region, RegionSlice, ReplicaPolicy, Ring, Shards, Submit, SubsystemAddress, SubsystemPaths,
    Ticket,
};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, ManagementClient, Program, binary, eventually, feedrail, host,
    loopback_address, write_configuration,
};
use nvme_proto::{Nqn, Nsid};
use serde_json::{Value, json};
use tempfile::TempDir;

const SIZE_BYTES: usize = 4 << 20;
const READ_BYTES: u32 = 16 << 10;
const NQN: &str = "nqn.2026-01.io.feedrail:paths";
/// Bytes of a write of the writer, and the most writes in flight.
const BLOCK: usize = 4096;
const IN_FLIGHT: usize = 16;

/// A target of the file `shard` at these ports of an address of its own.
struct Target {
    folder: TempDir,
    daemon: Daemon,
}

impl Target {
    fn start(shard: &Path, ports: &[u16]) -> Self {
        Self::exporting(shard, true, ports)
    }

    /// One that hosts may write to. It has the file alone.
    fn writable(shard: &Path, ports: &[u16]) -> Self {
        Self::exporting(shard, false, ports)
    }

    fn exporting(shard: &Path, read_only: bool, ports: &[u16]) -> Self {
        let address = loopback_address();
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ports: String = ports
            .iter()
            .map(|port| format!("[[port]]\naddress = \"{address}:{port}\"\n"))
            .collect();
        let configuration = format!(
            "cores = 1\nstate_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n{ports}\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nread_only = {read_only}\npath = \"{}\"\n",
            shard.display()
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, daemon }
    }

    /// Kills it, and starts it again as it was at first.
    fn restarted(self) -> Self {
        let Self { folder, daemon } = self;
        daemon.kill();
        let configuration = folder.path().join("feedrail.toml");
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        Self { folder, daemon }
    }

    fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.daemon.address().ip(), port)
    }

    fn call(&self, method: &str, params: &Value) {
        let mut client = ManagementClient::connect(&self.folder.path().join("socket"));
        client.call(method, params).unwrap();
    }

    fn at(&self, port: u16) -> Value {
        json!({ "nqn": NQN, "listen_address": {
            "trtype": "rdma", "traddr": self.address(port).ip().to_string(),
            "trsvcid": port.to_string(),
        } })
    }

    fn set_ana(&self, port: u16, state: &str) {
        let mut params = self.at(port);
        params["ana_state"] = state.into();
        self.call("nvmf_subsystem_listener_set_ana_state", &params);
    }
}

/// The file that targets serve.
struct Shard {
    _folder: TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Shard {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (path, bytes) = (folder.path().join("shard"), Bytes::new(1).take(SIZE_BYTES));
        fs::write(&path, &bytes).unwrap();
        Self { _folder: folder, path, bytes }
    }
}

/// Reads all of the namespace, as often as it is asked to.
struct Reader {
    host: Host,
    _paths: SubsystemPaths,
    shards: Shards,
    region: Region,
    bytes: Vec<u8>,
}

impl Reader {
    /// Opens all paths that the discovery service at an address names.
    fn new(service: SocketAddr, policy: ReplicaPolicy, bytes: Vec<u8>) -> Self {
        let host = host().build().unwrap();
        let nqn: Nqn = NQN.parse().unwrap();
        let targets = host.find_paths(service, nqn).wait().unwrap();
        let paths = host.connect_paths(targets).wait().unwrap();
        assert!(paths.unreachable().is_empty(), "{paths:?}");
        Self::over(host, paths, policy, bytes)
    }

    fn over(host: Host, paths: SubsystemPaths, policy: ReplicaPolicy, bytes: Vec<u8>) -> Self {
        let namespaces = paths.namespace(Nsid(1)).wait().unwrap();
        let shards = Shards::with_replicas(policy, [namespaces]).unwrap();
        let region = Region::allocate(SIZE_BYTES, Grant::Persistent).unwrap();
        Self { host, _paths: paths, shards, region, bytes }
    }

    fn begin(&self) -> Ticket {
        let entries: Vec<_> = (0..SIZE_BYTES as u64)
            .step_by(READ_BYTES as usize)
            .map(|offset| Entry { shard: 0, length: READ_BYTES, offset, dst: offset })
            .collect();
        self.host.submit(&self.shards, &entries, &self.region, Submit::default()).unwrap()
    }

    /// The addresses that the bytes came from, in order, and how often a range was begun again.
    #[track_caller]
    fn end(&self, ticket: Ticket) -> (Vec<SocketAddr>, usize) {
        ticket.wait(usize::MAX, None);
        for entry in 0..ticket.len() {
            assert!(ticket.outcome(entry).is_ok(), "{:?}", ticket.error(entry));
        }
        let mut found = vec![0; SIZE_BYTES];
        self.region.copy_out(0, &mut found).unwrap();
        assert!(found == self.bytes, "other bytes than the file has");
        let from = |entry| ticket.namespace(entry).target().address;
        let mut addresses: Vec<_> = (0..ticket.len()).map(from).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let again = ticket.outcomes().filter(|outcome| outcome.attempts > 1).count();
        (addresses, again)
    }

    #[track_caller]
    fn read(&self) -> Vec<SocketAddr> {
        self.end(self.begin()).0
    }

    /// Reads until the bytes come from these addresses.
    #[track_caller]
    fn comes_to_read_from(&self, addresses: &[SocketAddr]) {
        eventually("reads take the right paths", || self.read() == addresses);
    }
}

/// Writes and checks a namespace over all paths, with at most one write to a block in flight.
struct Writer {
    host: Host,
    _paths: SubsystemPaths,
    namespace: Namespace,
    ring: Ring,
    random: Bytes,
    /// Last version that each block was written with, and whether a write to it is in flight.
    versions: Vec<(u32, bool)>,
    acknowledged: u64,
}

impl Writer {
    fn over(host: Host, targets: &[SocketAddr], policy: ReplicaPolicy) -> Self {
        let nqn = NQN.parse().unwrap();
        let targets = targets.iter().map(|&address| SubsystemAddress { address, nqn });
        let paths = host.connect_paths(targets).wait().unwrap();
        assert!(paths.unreachable().is_empty(), "{paths:?}");
        let namespace = paths.multipath_namespace(Nsid(1), policy).wait().unwrap();
        Self::of(host, paths, namespace)
    }

    fn of(host: Host, paths: SubsystemPaths, namespace: Namespace) -> Self {
        let ring = host.ring(IN_FLIGHT);
        let versions = vec![(0, false); SIZE_BYTES / BLOCK];
        let random = Bytes::new(7);
        Self { host, _paths: paths, namespace, ring, random, versions, acknowledged: 0 }
    }

    fn contents(block: usize, version: u32) -> Vec<u8> {
        Bytes::new(u64::from(version) << 32 | block as u64 | 1 << 63).take(BLOCK)
    }

    /// Begins writes to free blocks until the ring is full, and takes results.
    #[track_caller]
    fn go_on(&mut self) {
        while self.versions.iter().filter(|(_, under_way)| *under_way).count() < IN_FLIGHT {
            let block = self.random.below(self.versions.len() as u64) as usize;
            let (version, under_way) = &mut self.versions[block];
            if *under_way {
                continue;
            }
            (*version, *under_way) = (*version + 1, true);
            let slice = RegionSlice::from_vec(Self::contents(block, *version), Grant::Persistent);
            let offset = (block * BLOCK) as u64;
            self.ring.write(&self.namespace, offset, slice, block as u64).unwrap();
        }
        self.reap(1);
    }

    #[track_caller]
    fn reap(&mut self, wanted: usize) {
        let mut ended = Vec::new();
        self.ring.wait(wanted, Some(Duration::from_millis(100)), &mut ended);
        for RangeCompletion { token, result, .. } in ended {
            result.unwrap();
            self.acknowledged += 1;
            self.versions[token as usize].1 = false;
        }
    }

    /// Continues until so many more writes were acknowledged.
    #[track_caller]
    fn writes(&mut self, count: u64) {
        let (end, mut idle) = (self.acknowledged + count, 0);
        while self.acknowledged < end {
            let before = self.acknowledged;
            self.go_on();
            // That waits for 100 ms where nothing comes.
            idle = if self.acknowledged == before { idle + 1 } else { 0 };
            assert!(idle < 300, "it hangs after {before} writes");
        }
    }

    /// Waits for all writes, and compares every block over the network and in the file.
    #[track_caller]
    fn ends_with(mut self, path: &Path, original: &[u8]) {
        while self.ring.in_flight() > 0 {
            self.reap(IN_FLIGHT);
        }
        let file = fs::read(path).unwrap();
        for (block, &(version, _)) in self.versions.iter().enumerate() {
            let at = block * BLOCK;
            let expected = match version {
                0 => original[at..at + BLOCK].to_vec(),
                _ => Self::contents(block, version),
            };
            assert!(file[at..at + BLOCK] == expected, "block {block} in the file");
            let mut found = vec![0; BLOCK];
            self.namespace.read_at(at as u64, &mut found).unwrap();
            assert!(found == expected, "block {block} over the network");
        }
        self.namespace.flush().wait().unwrap();
    }
}

/// A host that gives a lost target 3 s to miss it, and ranges more than that.
fn patient_host(provider: RdmaProvider) -> Host {
    let options = ControllerOptions::new()
        .keep_alive_ms(1_000)
        .io_timeout(Duration::from_secs(60))
        .silence_timeout(Duration::from_secs(1));
    host().provider(provider).controller_options(options).build().unwrap()
}

#[test]
fn reads_follow_the_access_states_of_two_ports() {
    let shard = Shard::new();
    let target = Target::start(&shard.path, &[4420, 4421]);
    let (one, two) = (target.address(4420), target.address(4421));
    let reader = Reader::new(two, ReplicaPolicy::RoundRobin, shard.bytes);
    assert_eq!(reader.read(), [one, two]);
    for state in ["inaccessible", "change", "persistent_loss", "non_optimized"] {
        let under_way = reader.begin();
        target.set_ana(4420, state);
        reader.end(under_way);
        reader.comes_to_read_from(&[two]);
        target.set_ana(4420, "optimized");
        reader.comes_to_read_from(&[one, two]);
    }
    // While neither serves nothing is read, and nothing fails.
    target.set_ana(4420, "inaccessible");
    target.set_ana(4421, "inaccessible");
    let waiting = reader.begin();
    target.set_ana(4421, "non_optimized");
    assert_eq!(reader.end(waiting).0, [two]);
    target.set_ana(4420, "optimized");
    reader.comes_to_read_from(&[one]);
    assert_eq!(reader.host.counters().connections_lost, 0);
}

/// Here both are equally near.
#[test]
fn the_nearest_path_is_taken_as_long_as_it_serves() {
    let shard = Shard::new();
    let target = Target::start(&shard.path, &[4420, 4421]);
    let (one, two) = (target.address(4420), target.address(4421));
    let reader = Reader::new(one, ReplicaPolicy::Numa, shard.bytes);
    let first = reader.read();
    assert!(first == [one] || first == [two], "{first:?}");
    let (near, far) = if first == [one] { (4420, two) } else { (4421, one) };
    target.set_ana(near, "inaccessible");
    reader.comes_to_read_from(&[far]);
    target.set_ana(near, "optimized");
    reader.comes_to_read_from(&first);
}

#[test]
fn a_removed_port_costs_no_read() {
    let shard = Shard::new();
    let target = Target::start(&shard.path, &[4420, 4421]);
    let (one, two) = (target.address(4420), target.address(4421));
    let reader = Reader::new(one, ReplicaPolicy::QueueDepth, shard.bytes);
    reader.comes_to_read_from(&[one, two]);
    for _ in 0..3 {
        let under_way = reader.begin();
        target.call("nvmf_subsystem_remove_listener", &target.at(4421));
        reader.end(under_way);
        assert_eq!(reader.read(), [one]);
        target.call("nvmf_subsystem_add_listener", &target.at(4421));
        reader.comes_to_read_from(&[one, two]);
    }
}

#[test]
fn the_death_of_one_of_two_targets_costs_no_read() {
    let shard = Shard::new();
    let (stays, dies) = (Target::start(&shard.path, &[4420]), Target::start(&shard.path, &[4420]));
    let (one, two) = (stays.address(4420), dies.address(4420));
    stays.call(
        "nvmf_discovery_add_referral",
        &json!({ "address": {
            "trtype": "rdma", "traddr": two.ip().to_string(), "trsvcid": "4420",
        } }),
    );
    let reader = Reader::new(one, ReplicaPolicy::RoundRobin, shard.bytes);
    let mut both = [one, two];
    both.sort_unstable();
    assert_eq!(reader.read(), both);
    let under_way = reader.begin();
    dies.daemon.kill();
    reader.end(under_way);
    assert_eq!(reader.read(), [one]);
}

#[test]
fn the_death_of_a_target_costs_no_write_over_its_ports() {
    for (provider, policy) in [
        (RdmaProvider::Soft, ReplicaPolicy::RoundRobin),
        (RdmaProvider::Auto, ReplicaPolicy::QueueDepth),
    ] {
        let shard = Shard::new();
        let mut target = Target::writable(&shard.path, &[4420, 4421]);
        let addresses = [4420, 4421].map(|port| target.address(port));
        let mut writer = Writer::over(patient_host(provider), &addresses, policy);
        writer.writes(500);
        for _ in 0..3 {
            // Writes are in flight during the restart.
            target = target.restarted();
            writer.writes(500);
        }
        assert!(writer.host.counters().reconnects >= 3);
        writer.ends_with(&shard.path, &shard.bytes);
    }
}

#[test]
fn writes_follow_the_access_states_and_ports_of_a_target() {
    let shard = Shard::new();
    let target = Target::writable(&shard.path, &[4420, 4421]);
    let addresses = [4420, 4421].map(|port| target.address(port));
    let mut writer =
        Writer::over(patient_host(RdmaProvider::Soft), &addresses, ReplicaPolicy::RoundRobin);
    for (one, other) in [
        ("inaccessible", "optimized"),
        ("optimized", "inaccessible"),
        ("change", "non_optimized"),
        ("optimized", "optimized"),
    ] {
        target.set_ana(4420, one);
        target.set_ana(4421, other);
        writer.writes(500);
    }
    // They wait while no path serves.
    target.set_ana(4420, "inaccessible");
    target.set_ana(4421, "inaccessible");
    (0..3).for_each(|_| writer.go_on());
    target.set_ana(4420, "optimized");
    writer.writes(500);
    target.set_ana(4421, "optimized");
    target.call("nvmf_subsystem_remove_listener", &target.at(4421));
    writer.writes(500);
    target.call("nvmf_subsystem_add_listener", &target.at(4421));
    assert!(writer.host.counters().failovers > 0);
    writer.writes(500);
    writer.ends_with(&shard.path, &shard.bytes);
}

#[test]
fn hosts_leave_a_target_that_is_drained() {
    let shard = Shard::new();
    let target = Target::start(&shard.path, &[4420, 4421]);
    let (one, two) = (target.address(4420), target.address(4421));
    let socket = target.folder.path().join("socket");
    let drain = |options: &[&str]| {
        let options = [&["target", "drain", "--socket", socket.to_str().unwrap()], options];
        feedrail(options.concat()).run()
    };
    assert_eq!(drain(&[]).success(), b"no host is connected\n");
    drain(&["--undo"]).success();
    let reader = Reader::new(one, ReplicaPolicy::RoundRobin, shard.bytes);
    assert_eq!(reader.read(), [one, two]);
    let under_way = reader.begin();
    let hosts = drain(&["--listen", &one.to_string(), "-o", "json"]).success();
    reader.end(under_way);
    let hosts: Value = serde_json::from_slice(&hosts).unwrap();
    assert_eq!(hosts["connected"].as_array().unwrap().len(), 2, "{hosts}");
    assert_eq!(hosts["connected"][0]["subnqn"], NQN);
    reader.comes_to_read_from(&[two]);
    drain(&["--listen", &one.to_string(), "--undo"]).success();
    reader.comes_to_read_from(&[one, two]);
    // Without another path reads wait, and lose nothing.
    target.set_ana(4421, "non_optimized");
    drain(&[NQN]).success();
    let waiting = reader.begin();
    drain(&["--undo"]).success();
    reader.end(waiting);
    let mut client = ManagementClient::connect(&socket);
    let listeners = client.call("nvmf_subsystem_get_listeners", &json!({ "nqn": NQN })).unwrap();
    for listener in listeners.as_array().unwrap() {
        let before = match listener["address"]["trsvcid"].as_str() {
            Some("4421") => "non_optimized",
            _ => "optimized",
        };
        assert_eq!(listener["ana_states"][0]["ana_state"], before, "{listener}");
    }
    assert!(drain(&["--listen", "192.0.2.7"]).failure().contains("no such subsystem"));
}

#[test]
fn perf_reads_and_writes_over_all_paths() {
    let shard = Shard::new();
    let target = Target::writable(&shard.path, &[4420, 4421]);
    let perf_of = |nqn: &str, options: &[&str]| {
        let program = feedrail(["perf", "--all-paths", "--provider", "soft", "-o", "json"]);
        program.args(target.daemon.address_options()).args(["-n", nqn]).args(options)
    };
    let perf = |options: &[&str]| perf_of(NQN, options);
    let verify =
        ["--verify", shard.path.to_str().unwrap(), "--number-ios", "500", "--iodepth", "8"];
    for (policy, expected) in
        [("round-robin", [Some(250); 2]), ("queue-depth", [None; 2]), ("first", [Some(500), None])]
    {
        let report = perf(&[&verify[..], &["--path-policy", policy]].concat()).run().success();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let paths = &report["results"]["paths"];
        let reads = [4420, 4421].map(|port| paths[target.address(port).to_string()].as_u64());
        assert_eq!(reads.iter().flatten().sum::<u64>(), 500, "{report}");
        for (reads, expected) in reads.iter().zip(expected) {
            assert!(expected.is_none() || *reads == expected, "{policy}: {paths}");
        }
        assert_eq!(report["results"]["read_again"], 0);
    }
    let writes = ["--rw", "randrw", "--allow-writes", "--number-ios", "500", "--iodepth", "8"];
    let report = perf(&writes).run().success();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let done = ["read", "write"].map(|side| report["results"][side]["total_ios"].as_u64().unwrap());
    assert_eq!(done[0] + done[1], 500, "{report}");
    assert_eq!(report["results"]["failovers"], 0);
    let elsewhere = perf_of("nqn.2026-01.io.feedrail:other", &[]).run().failure();
    assert!(elsewhere.contains("names no port of the subsystem"), "{elsewhere}");
}

/// Ports, targets and referrals that come and go are noticed over connections that last, even
/// through the end of a target and the start of its successor.
#[test]
fn paths_that_come_and_go_are_followed() {
    let shard = Shard::new();
    let target = Target::start(&shard.path, &[4420, 4421]);
    let other = Target::start(&shard.path, &[4420]);
    let [one, two, three] = [target.address(4420), target.address(4421), other.address(4420)];
    target.call("nvmf_subsystem_remove_listener", &target.at(4421));
    let host = host().reconnect_delay(Duration::from_millis(50)).build().unwrap();
    let followed = host.follow_paths(one, NQN.parse().unwrap()).wait().unwrap();
    let follow = |followed: &FollowedPaths, change: &dyn Fn(), expected: &[SocketAddr]| {
        let next = followed.next();
        change();
        let mut next = next.wait().unwrap();
        let addresses = |of: &FollowedPaths| {
            let targets = of.paths().controllers().iter().map(|path| path.target().address);
            targets.collect::<Vec<_>>()
        };
        // Some changes are told in several steps.
        while addresses(&next) != expected {
            next = next.next().wait().unwrap();
        }
        let paths = next.paths().clone();
        let policy = ReplicaPolicy::RoundRobin;
        let mut sorted = expected.to_vec();
        sorted.sort_unstable();
        Reader::over(host.clone(), paths, policy, shard.bytes.clone()).comes_to_read_from(&sorted);
        next
    };
    let add = || target.call("nvmf_subsystem_add_listener", &target.at(4421));
    let followed = follow(&followed, &add, &[one, two]);
    let address = other.at(4420)["listen_address"].clone();
    let refer = |to: &Target, method: &str| to.call(method, &json!({ "address": address }));
    let add = || refer(&target, "nvmf_discovery_add_referral");
    let followed = follow(&followed, &add, &[one, two, three]);
    assert_eq!(followed.services().collect::<Vec<_>>(), [one, three]);
    let remove = || target.call("nvmf_subsystem_remove_listener", &target.at(4421));
    let followed = follow(&followed, &remove, &[one, three]);
    // The other target is still referred to while it is away, and told when it is back.
    other.call("nvmf_subsystem_remove_listener", &other.at(4420));
    let followed = follow(&followed, &|| {}, &[one]);
    let back = || other.call("nvmf_subsystem_add_listener", &other.at(4420));
    let followed = follow(&followed, &back, &[one, three]);
    let next = followed.next();
    let _target = target.restarted();
    let next = next.wait().unwrap();
    let addresses: Vec<_> =
        next.paths().controllers().iter().map(|path| path.target().address).collect();
    assert_eq!(addresses, [one, two], "the configuration has no referral, and both ports");
}

/// Reads and writes of one namespace continue while its ports come and go one after the other.
#[test]
fn a_namespace_follows_ports_that_come_and_go() {
    let shard = Shard::new();
    let target = Target::writable(&shard.path, &[4420, 4421]);
    let host = patient_host(RdmaProvider::Soft);
    let nqn = NQN.parse().unwrap();
    let followed = host.follow_paths(target.address(4420), nqn).wait().unwrap();
    let policy = ReplicaPolicy::RoundRobin;
    let namespace = followed.paths().multipath_namespace(Nsid(1), policy).wait().unwrap();
    let mut writer = Writer::of(host, followed.paths().clone(), namespace.clone());
    let follower = followed.keep_up(std::slice::from_ref(&namespace));
    drop(followed);
    // It ends with the target.
    let follower = std::thread::spawn(move || follower.wait());
    for round in 0..4 {
        let (method, expected) = match round % 2 {
            0 => ("nvmf_subsystem_remove_listener", 1),
            _ => ("nvmf_subsystem_add_listener", 2),
        };
        target.call(method, &target.at(4421));
        eventually("the namespace has all existing paths", || {
            writer.go_on();
            namespace.paths().count() == expected
        });
        writer.writes(500);
    }
    writer.ends_with(&shard.path, &shard.bytes);
    assert!(!follower.is_finished(), "it follows as long as the service is there");
}

#[test]
fn a_persistent_discovery_prints_each_change() {
    let shard = Shard::new();
    let target = Target::start(&shard.path, &[4420, 4421]);
    let output = target.folder.path().join("log");
    let address = target.address(4420).ip().to_string();
    let command = format!(
        "exec {} discover --persistent -o json -a {address} -s 4420 > {}",
        binary("feedrail").display(),
        output.display()
    );
    let program = Program::new("sh").args(["-c", &command]).start();
    let logs = || {
        let text = fs::read_to_string(&output).unwrap_or_default();
        let logs = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        logs.map_while(Result::ok).collect::<Vec<_>>()
    };
    eventually("the log page is printed", || logs().len() == 1);
    target.call("nvmf_subsystem_remove_listener", &target.at(4421));
    eventually("the change is printed", || logs().len() == 2);
    program.kill();
    let logs = logs();
    let has_port = |log: &Value| {
        log["records"].as_array().unwrap().iter().any(|record| record["trsvcid"] == "4421")
    };
    assert!(has_port(&logs[0]) && !has_port(&logs[1]), "{logs:?}");
    assert_ne!(logs[0]["genctr"], logs[1]["genctr"]);
}
