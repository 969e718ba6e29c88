//! In-band authentication: with keys that fit, and with targets that refuse, lie or are silent.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use feedrail_auth::{AuthPolicy, DhGroup, HashFunction, HostKeys, Preference, Transformation};
use feedrail_initiator::{
    AuthenticationFailure, Controller, ControllerOptions, Error, ErrorKind, Grant, HostAuthError,
    Secret,
};
use nvme_proto::auth::FailureExplanation;
use nvme_proto::{Cid, Cqe, FabricsType, NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen, pattern};
use super::fake_auth::FakeAuth;
use super::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Secret of 32 bytes that are counted from `first`.
fn secret(first: u8) -> Secret {
    let bytes: Vec<u8> = (first..first + 32).collect();
    Secret::new(Transformation::Hmac(HashFunction::Sha256), &bytes).unwrap()
}

fn keys(host: u8, controller: u8) -> HostKeys {
    let parties = FakeAuth::parties();
    HostKeys {
        host: secret(host).key_for(&parties.host.0),
        controller: Some(secret(controller).key_for(&parties.subsystem)),
    }
}

fn options() -> ControllerOptions {
    ControllerOptions::new().dhchap_secret(secret(0))
}

fn both_ways() -> ControllerOptions {
    options().dhchap_ctrl_secret(secret(100))
}

/// A world whose target has the secrets 0 of the host and 100 of its own.
fn world(options: ControllerOptions) -> World {
    let mut world = World::with(1, SimConfig::default(), 64, options);
    world.fake.auth.require(keys(0, 100));
    world
}

fn reason(error: &Error) -> AuthenticationFailure {
    match error.kind() {
        ErrorKind::Authentication { reason } => *reason,
        _ => panic!("{error}"),
    }
}

fn is_auth(seen: &Seen) -> bool {
    let kinds = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    seen.sqe.is_fabrics() && kinds.contains(&seen.sqe.fabrics_type())
}

fn auth_commands(world: &World) -> usize {
    world.fake.count(is_auth)
}

/// A script for the authentication command `number`, counted from 0.
fn at_auth(
    number: usize,
    act: impl Fn(&Seen) -> Action + 'static,
) -> Box<dyn FnMut(&Seen) -> Action> {
    let next = Cell::new(0);
    Box::new(move |seen| {
        if !is_auth(seen) {
            return Action::Normal;
        }
        match next.replace(next.get() + 1) == number {
            true => act(seen),
            false => Action::Normal,
        }
    })
}

fn reads(world: &mut World, controller: &Controller) {
    let opening = controller.namespace(nvme_proto::Nsid(1));
    let namespace = world.run(opening).unwrap();
    let outcome = world.read(&namespace, 512, 4096, Grant::Persistent);
    outcome.result.unwrap();
    assert!(outcome.slice.bytes().iter().enumerate().all(|(i, &b)| b == pattern(512 + i)));
}

#[test]
fn every_queue_is_authenticated() {
    for (options, is_bidirectional) in [(options(), false), (both_ways(), true)] {
        let mut world = world(options.io_queues(4));
        let controller = world.connect().unwrap();
        reads(&mut world, &controller);
        let done = &world.fake.auth.done;
        assert_eq!((done.len(), world.fake.auth.failed), (5, 0));
        assert!(done.iter().all(|it| it.bidirectional == is_bidirectional));
        assert!(done.iter().all(|it| it.group == Some(DhGroup::Ffdhe3072)));
    }
}

/// Connects with each hash function and these groups, both ways.
fn matrix(groups: &[Option<DhGroup>]) {
    for &group in groups {
        for hash in HashFunction::ALL {
            let mut world = world(both_ways());
            world.fake.auth.policy = AuthPolicy {
                hashes: Preference { preferred: None, allowed: vec![hash] },
                groups: Preference { preferred: None, allowed: vec![group] },
            };
            let controller = world.connect().unwrap();
            reads(&mut world, &controller);
            for done in &world.fake.auth.done {
                assert_eq!((done.hash, done.group, done.bidirectional), (hash, group, true));
            }
            assert_eq!(world.fake.auth.done.len(), 2);
        }
    }
}

#[test]
fn hash_functions_and_small_groups() {
    matrix(&[None, Some(DhGroup::Ffdhe2048), Some(DhGroup::Ffdhe3072)]);
}

#[test]
fn large_groups() {
    matrix(&[Some(DhGroup::Ffdhe4096), Some(DhGroup::Ffdhe6144), Some(DhGroup::Ffdhe8192)]);
}

#[test]
fn what_the_host_lacks_is_named() {
    let mut world = world(ControllerOptions::new());
    let error = world.connect().unwrap_err();
    assert_eq!(reason(&error), AuthenticationFailure::SecretMissing);
    assert!(error.to_string().contains("give --dhchap-secret"), "{error}");
    assert!(!error.is_retryable());
    world.fake.auth.wants_channel = true;
    let error = world.connect().unwrap_err();
    assert_eq!(reason(&error), AuthenticationFailure::SecureChannel);
}

#[test]
fn a_wrong_key_is_an_error_at_once() {
    let refused = HostAuthError::RefusedByController(FailureExplanation::FAILED);
    for keys in [Some(keys(1, 100)), None] {
        let mut world = world(options());
        world.fake.auth.keys = keys;
        let error = world.connect().unwrap_err();
        assert_eq!(reason(&error), AuthenticationFailure::Failed(refused));
        assert!(error.to_string().contains("host NQN"), "{error}");
        world.pass(10 * SECOND);
        assert_eq!(world.fake.connections, 1, "another attempt has the same result");
    }
}

#[test]
fn a_target_without_the_controller_key_is_refused() {
    let mut world = world(both_ways());
    world.fake.auth.keys = Some(keys(0, 101));
    let error = world.connect().unwrap_err();
    let failed = HostAuthError::Refused(FailureExplanation::FAILED);
    assert_eq!(reason(&error), AuthenticationFailure::Failed(failed));
    assert!(error.to_string().contains("controller key"), "{error}");
    // Without a key the target itself refuses.
    world.fake.auth.keys = Some(HostKeys { controller: None, ..keys(0, 100) });
    let error = world.connect().unwrap_err();
    let refused = HostAuthError::RefusedByController(FailureExplanation::FAILED);
    assert_eq!(reason(&error), AuthenticationFailure::Failed(refused));
}

#[test]
fn a_target_that_requires_nothing() {
    let mut host_only = world(options());
    host_only.fake.auth.is_required = false;
    let controller = host_only.connect().unwrap();
    reads(&mut host_only, &controller);
    assert_eq!(auth_commands(&host_only), 0, "as Linux does");
    let again = controller.reauthenticate();
    let error = host_only.run(again).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Invalid(_)), "{error}");
    reads(&mut host_only, &controller);

    // A host that wants to know who the target is does not connect without that.
    let mut demanding = world(both_ways());
    demanding.fake.auth.is_required = false;
    let error = demanding.connect().unwrap_err();
    let status = Status::INVALID_OPCODE.with_dnr();
    assert_eq!(reason(&error), AuthenticationFailure::NotOffered(status));
    demanding.fake.auth.is_offered = true;
    let controller = demanding.connect().unwrap();
    reads(&mut demanding, &controller);
    assert_eq!(demanding.fake.auth.done.len(), 2);
}

/// Authentication commands of a queue with the secrets of [`both_ways`]: negotiate, challenge,
/// reply, success 1, success 2.
const COMMANDS: usize = 5;

#[test]
fn a_target_that_falls_silent_is_given_up_in_time() {
    for number in 0..2 * COMMANDS {
        let mut world = world(both_ways().connect_timeout(3 * SECOND));
        world.fake.script = at_auth(number, |_| Action::Ignore);
        let before = world.now;
        let error = world.connect().unwrap_err();
        let timed_out = AuthenticationFailure::Failed(HostAuthError::TimedOut);
        assert_eq!(reason(&error), timed_out, "{number}");
        assert!(error.is_retryable());
        let took = world.now - before;
        assert!((3 * SECOND..4 * SECOND).contains(&took), "{number}: {took:?}");
    }
}

#[test]
fn a_target_that_leaves_at_any_stage() {
    for number in 0..2 * COMMANDS {
        let mut world = world(both_ways());
        world.fake.script = at_auth(number, |_| Action::Disconnect);
        let error = world.connect().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionLost(_)), "{number}: {error}");
        assert!(error.to_string().contains("authenticated"), "{error}");
        let controller = world.connect().unwrap();
        reads(&mut world, &controller);
    }
}

#[test]
fn a_status_at_any_stage() {
    for number in 0..COMMANDS {
        for (status, is_retryable) in
            [(Status::INTERNAL_ERROR, true), (Status::INTERNAL_ERROR.with_dnr(), false)]
        {
            let mut world = world(both_ways());
            world.fake.script = at_auth(number, move |_| Action::Fail(status));
            let error = world.connect().unwrap_err();
            let failed = AuthenticationFailure::Failed(HostAuthError::CommandFailed(status));
            assert_eq!((reason(&error), error.is_retryable()), (failed, is_retryable));
        }
    }
}

#[test]
fn responses_that_break_rules_end_the_attempt() {
    for number in 0..COMMANDS {
        for act in [
            |_: &Seen| Action::Bytes(vec![0; 15]),
            |seen: &Seen| Action::Answer(Cqe::success(Cid(seen.sqe.cid().0 ^ 1))),
        ] {
            let mut world = world(both_ways());
            world.fake.script = at_auth(number, act);
            let error = world.connect().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{number}: {error}");
        }
    }
}

#[test]
fn junk_instead_of_a_message_is_refused() {
    type Spoil = fn(Vec<u8>) -> Vec<u8>;
    let spoils: [Spoil; 6] = [
        |_| Vec::new(),
        |bytes| vec![0xFF; bytes.len()],
        |_| vec![0xFF; 4096],
        |mut bytes| {
            bytes[1] ^= 0x40;
            bytes
        },
        // Another transaction.
        |mut bytes| {
            bytes[4] ^= 1;
            bytes
        },
        // The value of the group, the challenge or the response.
        |mut bytes| {
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        },
    ];
    for (index, spoil) in spoils.into_iter().enumerate() {
        for number in 0..2 {
            let mut world = world(both_ways());
            let next = Cell::new(0);
            world.fake.auth.spoil =
                Box::new(move |bytes| match next.replace(next.get() + 1) == number {
                    true => spoil(bytes),
                    false => bytes,
                });
            let error = world.connect().unwrap_err();
            let failure = reason(&error);
            assert!(!error.is_retryable(), "spoil {index} of message {number}: {failure:?}");
        }
    }
}

#[test]
fn a_target_that_writes_no_message() {
    let mut world = world(options());
    world.fake.script = at_auth(1, |seen| {
        Action::Bytes({
            use nvme_proto::IntoBytes as _;
            Cqe::success(seen.sqe.cid()).as_bytes().to_vec()
        })
    });
    let error = world.connect().unwrap_err();
    assert!(!error.is_retryable(), "{:?}", reason(&error));
}

#[test]
fn a_reconnect_authenticates_again() {
    let mut world = world(both_ways().io_queues(2));
    let controller = world.connect().unwrap();
    assert_eq!(world.fake.auth.done.len(), 3);
    let now = world.now;
    world.fake.disconnect_all(now);
    reads(&mut world, &controller);
    world.pass(SECOND);
    assert_eq!((world.fake.auth.done.len(), world.host.counters().reconnects), (6, 1));
}

#[test]
fn a_key_that_changed_is_tried_until_the_target_counts_as_lost() {
    let mut world = world(options().loss_timeout(5 * SECOND));
    let (_controller, namespace) = world.open();
    world.fake.auth.set_keys(Some(keys(1, 100)));
    let now = world.now;
    world.fake.disconnect_all(now);
    world.pass(2 * SECOND);
    assert!(world.fake.auth.failed > 1);
    // The target may have had too much to compute.
    world.fake.auth.set_keys(Some(keys(0, 100)));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    world.fake.auth.set_keys(Some(keys(1, 100)));
    let now = world.now;
    world.fake.disconnect_all(now);
    world.pass(10 * SECOND);
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    let ErrorKind::Lost { cause, .. } = error.kind() else { panic!("{error}") };
    let refused = HostAuthError::RefusedByController(FailureExplanation::FAILED);
    assert_eq!(reason(cause), AuthenticationFailure::Failed(refused));
    let attempts = world.fake.connections;
    world.pass(100 * SECOND);
    assert_eq!(world.fake.connections, attempts, "it is not tried for ever");
}

#[test]
fn a_live_connection_authenticates_again_while_ranges_go_on() {
    let mut world = world(both_ways().io_queues(2).queue_entries(4));
    let (controller, namespace) = world.open();
    for round in 1..=3 {
        let ranges: Vec<_> = (0..40)
            .map(|_| {
                let memory = feedrail_initiator::RegionSlice::allocate(16 << 10, Grant::Persistent);
                super::world::read_range(&namespace, 0, memory.unwrap())
            })
            .collect();
        let reading = world.host.read_many(ranges);
        let again = controller.reauthenticate();
        world.run(again).unwrap();
        for outcome in world.run(reading) {
            outcome.result.unwrap();
            assert!(outcome.slice.bytes().iter().enumerate().all(|(i, &b)| b == pattern(i)));
        }
        assert_eq!(world.fake.auth.done.len(), 3 + 3 * round);
    }
    assert_eq!(world.host.counters().reconnects, 0);
}

#[test]
fn two_callers_share_a_repeated_authentication() {
    let mut world = world(options());
    let controller = world.connect().unwrap();
    let (first, second) = (controller.reauthenticate(), controller.reauthenticate());
    world.run(first).unwrap();
    world.run(second).unwrap();
    assert_eq!(world.fake.auth.done.len(), 4);
    // Without a connection, the next one is waited for.
    let now = world.now;
    world.fake.disconnect_all(now);
    world.pass(Duration::from_micros(30));
    let again = controller.reauthenticate();
    world.run(again).unwrap();
    world.pass(SECOND);
    assert_eq!(world.host.counters().reconnects, 1);
}

#[test]
fn a_period_repeats_the_authentication() {
    let mut world = world(options().reauth_period(60 * SECOND));
    let controller = world.connect().unwrap();
    world.pass(200 * SECOND);
    assert_eq!((world.fake.auth.done.len(), world.fake.connections), (8, 2));
    reads(&mut world, &controller);
}

#[test]
fn a_repeated_authentication_that_fails_ends_the_controller() {
    let mut world = world(options());
    let (controller, namespace) = world.open();
    world.fake.auth.set_keys(Some(keys(1, 100)));
    let again = controller.reauthenticate();
    let error = world.run(again).unwrap_err();
    let refused = HostAuthError::RefusedByController(FailureExplanation::FAILED);
    assert_eq!(reason(&error), AuthenticationFailure::Failed(refused));
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    assert_eq!(reason(&error), AuthenticationFailure::Failed(refused));
    world.pass(100 * SECOND);
    assert_eq!(world.fake.connections, 2);
}

#[test]
fn a_silent_repeated_authentication_is_a_lost_connection() {
    let mut world = world(options().connect_timeout(3 * SECOND));
    let (controller, namespace) = world.open();
    world.fake.script = at_auth(1, |_| Action::Ignore);
    let again = controller.reauthenticate();
    world.run(again).unwrap();
    assert_eq!(world.host.counters().reconnects, 1);
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
}

#[test]
fn a_withdrawn_authentication_is_repeated_once() {
    let mut world = world(options());
    let (_controller, namespace) = world.open();
    let is_read = |seen: &Seen| !seen.qid.is_admin() && seen.sqe.opcode == NvmOpcode::READ.0;
    let left = Cell::new(1);
    world.fake.script = Box::new(move |seen| match is_read(seen) && left.get() > 0 {
        true => {
            left.set(left.get() - 1);
            Action::Fail(Status::AUTHENTICATION_REQUIRED.with_dnr())
        }
        false => Action::Normal,
    });
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    assert_eq!((world.fake.auth.done.len(), world.host.counters().reconnects), (4, 1));
    world.fake.script = Box::new(move |seen| match is_read(seen) {
        true => Action::Fail(Status::AUTHENTICATION_REQUIRED.with_dnr()),
        false => Action::Normal,
    });
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    assert_eq!(reason(&error), AuthenticationFailure::WithdrawnAgain);
}

#[test]
fn lost_and_reordered_packets_do_not_matter() {
    for seed in 0..20 {
        let config = SimConfig {
            loss_ppm: 100_000,
            duplication_ppm: 50_000,
            reordering_ppm: 50_000,
            ..SimConfig::default()
        };
        let mut world = World::with(seed, config, 64, both_ways().io_queues(2));
        world.fake.auth.require(keys(0, 100));
        let controller = world.connect().unwrap();
        reads(&mut world, &controller);
    }
}

#[test]
fn a_host_that_is_dropped_while_it_authenticates() {
    for number in 0..COMMANDS {
        let mut world = world(both_ways());
        world.fake.script = at_auth(number, |_| Action::Ignore);
        {
            let connecting = pin!(world.host.connect(World::target()));
            let _ = world.run_within(connecting, SECOND);
        }
        world.pass(SECOND);
        assert!(!world.fake.is_connected(), "{number}");
    }
}

#[test]
fn no_secret_is_in_a_text() {
    let shown = |text: String| {
        for secret in [secret(0), secret(100)] {
            let representation = secret.to_representation();
            assert!(!text.contains(&representation[10..30]), "{text}");
        }
        assert!(!text.contains("0, 1, 2, 3") && !text.contains("100, 101"), "{text}");
    };
    let mut world = world(both_ways());
    shown(format!("{:?} {:?}", both_ways(), world.host));
    world.fake.auth.keys = None;
    let error = world.connect().unwrap_err();
    shown(format!("{error} {error:?}"));
}
