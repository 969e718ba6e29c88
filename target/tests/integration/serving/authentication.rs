//! Hosts that authenticate with DH-HMAC-CHAP, and strangers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::{
    AuthKey, AuthOffer, Authenticated, DhGroup, HashFunction, HostAuth, HostAuthError, HostSetup,
    HostStep, Parties, Secret, SequenceNumbers, Transformation,
};
use feedrail_target::Config;
use nvme_proto::auth::{
    AuthTransaction, AuthenticationReceive, AuthenticationSend, FailureExplanation,
};
use nvme_proto::fabrics::{ConnectResponse, PropertyGet, PropertySize};
use nvme_proto::registers::Property;
use nvme_proto::{Cntlid, HostNqn, Nqn, Sgl, Sqe, Status};
use splitmix64::SplitMix64;

use super::host::Link;
use super::world::{NQN, On, World, config, read};

/// Memory of the host for messages, behind what commands use.
const MESSAGES_AT: usize = 1 << 20;

fn secret(first: u8) -> Secret {
    let bytes: Vec<u8> = (first..first + 32).collect();
    Secret::new(Transformation::Hmac(HashFunction::Sha256), &bytes).expect("a valid length")
}

fn name_of(host: usize) -> Nqn {
    format!("nqn.2026-01.io.feedrail:host{host}").parse().expect("valid")
}

/// Key files of a target.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, secret: &Secret) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, &*secret.to_representation()).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its owner may");
        path
    }

    /// Configuration in which host 0 has a key and a key of the subsystem, and `rest` follows.
    fn config(&self, authentication: &str, rest: &str) -> Config {
        let [host, controller] = [("host", 0), ("controller", 100)]
            .map(|(name, first)| self.write(name, &secret(first)));
        config(&format!(
            "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n{authentication}\n\
             [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"1MiB\"\n\
             [[subsystem.host]]\nnqn = \"{}\"\ndhchap_key = {host:?}\n\
             dhchap_ctrl_key = {controller:?}\n{rest}",
            name_of(0)
        ))
    }
}

/// Host's side of transactions.
struct Proof {
    setup: Arc<HostSetup>,
    random: SplitMix64,
    transactions: u16,
}

impl Proof {
    fn new(host: usize, first: u8, controller: Option<u8>) -> Self {
        Self::offering(host, first, controller, AuthOffer::default())
    }

    fn offering(host: usize, first: u8, controller: Option<u8>, offer: AuthOffer) -> Self {
        let parties =
            Parties { host: HostNqn(name_of(host)), subsystem: NQN.parse().expect("valid") };
        let key = |owner: &Nqn, first| -> AuthKey { secret(first).key_for(owner) };
        let setup = HostSetup {
            parties,
            host_key: key(&parties.host.0, first),
            controller_key: controller.map(|first| key(&parties.subsystem, first)),
            offer,
            sequences: SequenceNumbers::new(&mut |bytes| bytes.fill(1)),
        };
        Self { setup: Arc::new(setup), random: SplitMix64::new(5), transactions: 0 }
    }

    /// Runs a transaction on a queue, to its end.
    fn run(&mut self, world: &mut World, on: On) -> Result<Authenticated, HostAuthError> {
        self.transactions += 1;
        let (setup, id) = (Arc::clone(&self.setup), AuthTransaction(self.transactions));
        let (mut host, mut step) = HostAuth::begin(setup, id);
        let mut random = |bytes: &mut [u8]| bytes.fill_with(|| self.random.next_u64() as u8);
        loop {
            step = match step {
                HostStep::Send(message) => match send(world, on, &message) {
                    Status::SUCCESS => host.sent(),
                    status => host.command_failed(status),
                },
                HostStep::Receive => match receive(world, on, 4096) {
                    Ok(message) => host.received(&message, &mut random),
                    Err(status) => host.command_failed(status),
                },
                HostStep::Compute(work) => {
                    let result = work.run(&mut random);
                    host.computed(result, &mut random)
                }
                HostStep::Finish(result) => return result,
            };
        }
    }
}

fn send_command(world: &World, on: On, message: &[u8]) -> Sqe {
    world.hosts[on.host].put(MESSAGES_AT, message);
    let length_bytes = message.len() as u32;
    let data = world.keyed(on, MESSAGES_AT, message.len());
    AuthenticationSend { length_bytes }.to_sqe().with_data(data)
}

fn receive_command(world: &World, on: On, length: usize) -> Sqe {
    let data = world.keyed(on, MESSAGES_AT, length);
    AuthenticationReceive { length_bytes: length as u32 }.to_sqe().with_data(data)
}

fn send(world: &mut World, on: On, message: &[u8]) -> Status {
    let sqe = send_command(world, on, message);
    world.status(on, &sqe, &[])
}

fn receive(world: &mut World, on: On, length: usize) -> Result<Vec<u8>, Status> {
    let sqe = receive_command(world, on, length);
    match world.status(on, &sqe, &[]) {
        Status::SUCCESS => Ok(world.hosts[on.host].get(MESSAGES_AT, length)),
        status => Err(status),
    }
}

/// Connects a queue, and returns whether the host has to authenticate.
fn connect(world: &mut World, host: usize, qid: u16, cntlid: Cntlid) -> (On, bool) {
    let (on, _) = world.link(host, qid, 32);
    let cqe = world.nvme_connect(on, cntlid, 32);
    assert!(cqe.status().is_success(), "{cqe:?}");
    let response = ConnectResponse::from_bits(cqe.dw0.get());
    world.hosts[host].queues[on.queue].cntlid = response.cntlid();
    assert!(!response.secure_channel_required());
    (on, response.authentication_required())
}

fn admin(world: &mut World, host: usize) -> (On, bool) {
    connect(world, host, 0, Cntlid::DYNAMIC)
}

fn io(world: &mut World, admin: On, qid: u16) -> (On, bool) {
    let cntlid = world.hosts[admin.host].queues[admin.queue].cntlid;
    connect(world, admin.host, qid, cntlid)
}

fn read_csts() -> Sqe {
    PropertyGet { property: Property::CSTS, size: PropertySize::FourBytes }.to_sqe()
}

fn controllers(world: &World) -> usize {
    world.target.associations().controllers().len()
}

#[test]
fn a_host_with_its_key_reads_after_all_queues_authenticated() {
    let keys = Keys::new();
    for (group, ctrl) in [(Some(DhGroup::Ffdhe2048), None), (None, Some(100))] {
        let mut world = World::new(&keys.config("", ""));
        let host = world.add_host();
        let offer = AuthOffer::new(&[HashFunction::Sha384], &[group]).expect("one of each");
        let mut proof = Proof::offering(host, 0, ctrl, offer);
        let (admin, must) = admin(&mut world, host);
        assert!(must);
        let required = Status::AUTHENTICATION_REQUIRED;
        assert_eq!(world.status(admin, &read_csts(), &[]), required);
        let authenticated = proof.run(&mut world, admin).expect("the key is right");
        let expected =
            Authenticated { hash: HashFunction::Sha384, group, bidirectional: ctrl.is_some() };
        assert_eq!(authenticated, expected);
        world.enable(admin);
        let (io, must) = io(&mut world, admin, 1);
        assert!(must);
        let sqe = read(1, 0, 4096).with_data(world.keyed(io, 0, 4096));
        assert_eq!(world.status(io, &sqe, &[]), required);
        proof.run(&mut world, io).expect("the key is right");
        world.write(io, 1, 8, &[7; 4096]);
        assert_eq!(world.read(io, 1, 8, 4096), [7; 4096]);
    }
}

#[test]
fn wrong_keys_end_the_connection() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let (host, stranger) = (world.add_host(), world.add_host());
    let failed = HostAuthError::RefusedByController(FailureExplanation::FAILED);
    for (host, first) in [(host, 1), (stranger, 0)] {
        let (admin, must) = admin(&mut world, host);
        assert!(must, "a stranger as well");
        let mut proof = Proof::new(host, first, None);
        assert_eq!(proof.run(&mut world, admin), Err(failed));
        world.wait_down(admin);
        world.run_until("the association ends", |world| controllers(world) == 0);
    }
    // The host refuses the target.
    let (admin, _) = admin(&mut world, host);
    let refused = Proof::new(host, 0, Some(99)).run(&mut world, admin);
    assert_eq!(refused, Err(HostAuthError::Refused(FailureExplanation::FAILED)));
    world.wait_down(admin);
}

#[test]
fn names_are_enough_where_keys_are_only_offered() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("authentication = \"offered\"", ""));
    let (host, other) = (world.add_host(), world.add_host());
    assert!(admin(&mut world, host).1);
    let (on, must) = admin(&mut world, other);
    assert!(!must);
    world.enable(on);
    let sqe = receive_command(&world, on, 4096);
    assert_eq!(world.status(on, &sqe, &[]), Status::INVALID_OPCODE);
    let mut world = World::new(&keys.config("authentication = \"off\"", ""));
    let host = world.add_host();
    assert!(!admin(&mut world, host).1);
}

/// The answer to Authentication Receive waits for the exponentiation.
#[test]
fn a_receive_waits_for_work() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let host = world.add_host();
    let mut proof = Proof::new(host, 0, None);
    let (admin, _) = admin(&mut world, host);
    proof.run(&mut world, admin).expect("the key is right");
    world.enable(admin);
    // A group of its own, so that no pair is there.
    let offer = AuthOffer::new(&[HashFunction::Sha256], &[Some(DhGroup::Ffdhe2048)]);
    let proof = Proof::offering(host, 0, None, offer.expect("one of each"));
    let (_, HostStep::Send(negotiate)) = HostAuth::begin(proof.setup, AuthTransaction(1)) else {
        panic!("a transaction begins with a message")
    };
    let length_bytes = negotiate.len() as u32;
    let capsule = Sgl::InCapsule { offset: 0, length: length_bytes };
    let send = AuthenticationSend { length_bytes }.to_sqe().with_data(capsule);
    let (on, _) = io(&mut world, admin, 1);
    let receive = receive_command(&world, on, 4096);
    let (sent, received) = (world.post(on, &send, &negotiate), world.post(on, &receive, &[]));
    for cid in [sent, received] {
        assert!(world.response(on, cid).status().is_success());
    }
    assert_eq!(world.hosts[host].get(MESSAGES_AT, 2), [1, 1], "DH-HMAC-CHAP_Challenge");
    // The connection may end while it waits.
    let (on, _) = io(&mut world, admin, 2);
    world.post(on, &send, &negotiate);
    world.post(on, &receive, &[]);
    let now = world.now;
    world.hosts[host].disconnect(now, on.queue);
    world.wait_down(on);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.state(admin), Link::Up(32));
}

#[test]
fn silent_hosts_are_disconnected() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let host = world.add_host();
    let (admin, _) = admin(&mut world, host);
    world.run_for(Duration::from_secs(14));
    assert_eq!(world.state(admin), Link::Up(32), "the Keep Alive Timeout is 15 s");
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.state(admin), Link::Down);
    assert_eq!(controllers(&world), 0);
}

#[test]
fn strangers_make_room_for_newer_ones() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let (host, stranger) = (world.add_host(), world.add_host());
    let (known, _) = admin(&mut world, host);
    Proof::new(host, 0, None).run(&mut world, known).expect("the key is right");
    world.enable(known);
    let most = feedrail_target::testing::UNCONNECTED_PER_ADDRESS;
    let silent: Vec<On> = (0..=most).map(|_| admin(&mut world, stranger).0).collect();
    world.wait_down(silent[0]);
    assert_eq!(world.state(known), Link::Up(32));
    assert_eq!(controllers(&world), 1 + most);
}

#[test]
fn a_live_queue_authenticates_again() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let host = world.add_host();
    let mut proof = Proof::new(host, 0, Some(100));
    let (admin, _) = admin(&mut world, host);
    proof.run(&mut world, admin).expect("the key is right");
    world.enable(admin);
    let (io, _) = io(&mut world, admin, 1);
    proof.run(&mut world, io).expect("the key is right");
    world.write(io, 1, 0, &[3; 512]);
    for on in [admin, io] {
        proof.run(&mut world, on).expect("again");
    }
    assert_eq!(world.read(io, 1, 0, 512), [3; 512]);
    // A failure ends what was authenticated before.
    let refused = Proof::new(host, 1, None).run(&mut world, io);
    assert_eq!(refused, Err(HostAuthError::RefusedByController(FailureExplanation::FAILED)));
    world.wait_down(io);
    assert_eq!(world.state(admin), Link::Up(32));
}

#[test]
fn an_io_queue_of_another_name_is_refused() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let (host, other) = (world.add_host(), world.add_host());
    let (admin, _) = admin(&mut world, host);
    let cntlid = world.hosts[host].queues[admin.queue].cntlid;
    let status = |world: &mut World, host| {
        let (on, _) = world.link(host, 1, 32);
        world.nvme_connect(on, cntlid, 32).status().without_flags()
    };
    assert_eq!(status(&mut world, host), Status::COMMAND_SEQUENCE_ERROR, "not authenticated");
    Proof::new(host, 0, None).run(&mut world, admin).expect("the key is right");
    world.enable(admin);
    assert_eq!(status(&mut world, other), Status::CONNECT_INVALID_PARAMETERS);
}

#[test]
fn messages_have_bounds() {
    let keys = Keys::new();
    let mut world = World::new(&keys.config("", ""));
    let host = world.add_host();
    let (on, _) = admin(&mut world, host);
    assert_eq!(send(&mut world, on, &[0; 4097]), Status::INVALID_FIELD);
    let early = receive(&mut world, on, 8192);
    assert_eq!(early, Err(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(
        send(&mut world, on, &[0xFF; 100]),
        Status::SUCCESS,
        "what is wrong with it follows"
    );
    let failure = receive(&mut world, on, 8192).expect("a message");
    assert_eq!(failure[..2], [0, 0xF1], "AUTH_Failure1");
    world.wait_down(on);
}
