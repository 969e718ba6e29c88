//! Storage operations of queues that have left, and what their host may do until they end.
#![expect(unsafe_code, reason = "an engine that holds system calls back")]

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use feedrail_target::backend::SystemCall;
use feedrail_target::stepped::Stop;
use feedrail_target::stepped::{CallId, Engine, EngineEvent, EngineStats, Inline};
use feedrail_target::testing::STORAGE_GRACE;
use nvme_proto::fabrics::{PropertyGet, PropertySet, PropertySize};
use nvme_proto::feature::{Feature, SetFeatures, WriteProtection};
use nvme_proto::nvm::Flush;
use nvme_proto::registers::{Cc, Csts, Property, ShutdownNotification, ShutdownStatus};
use nvme_proto::{Cntlid, NvmCommand, Status};
use rdma::sim::{Sim, SimConfig};
use tempfile::TempDir;

use super::world::{NQN, On, World, config, read, write};

/// Selects the system calls that hang.
#[derive(Debug, Default)]
struct Hang {
    reads: AtomicBool,
    writes: AtomicBool,
    held_syncs: AtomicBool,
    /// Syncs that are held end with EIO.
    syncs_fail: AtomicBool,
    /// Number of syncs that began.
    syncs: AtomicU32,
}

impl Hang {
    fn holds(&self, what: &SystemCall) -> bool {
        match what {
            SystemCall::Read { .. } => self.reads.load(Ordering::Relaxed),
            SystemCall::Write { .. } => self.writes.load(Ordering::Relaxed),
            SystemCall::Sync { .. } => {
                self.syncs.fetch_add(1, Ordering::Relaxed);
                self.held_syncs.load(Ordering::Relaxed)
            }
            SystemCall::Fallocate { .. } => false,
        }
    }
}

/// Engine with plain calls. Hanging ones are executed later. None can be cancelled.
struct Hanging {
    inner: Inline,
    hang: Arc<Hang>,
    held: Vec<(CallId, SystemCall)>,
    events: Vec<EngineEvent>,
}

impl Engine for Hanging {
    unsafe fn start(&mut self, call: CallId, what: SystemCall) {
        if self.hang.holds(&what) {
            return self.held.push((call, what));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.start(call, what) }
    }

    fn cancel(&mut self, call: CallId) {
        if self.held.iter().any(|(held, _)| *held == call) {
            self.events.push(EngineEvent::NotCancelled { call });
        } else {
            self.inner.cancel(call);
        }
    }

    fn turn(&mut self) {
        for (call, what) in std::mem::take(&mut self.held) {
            let is_sync = matches!(what, SystemCall::Sync { .. });
            if is_sync && self.hang.syncs_fail.load(Ordering::Relaxed) {
                self.events.push(EngineEvent::Ended { call, result: -libc::EIO });
                continue;
            }
            // SAFETY: the call has not ended, so its memory is lent still.
            unsafe { self.start(call, what) }
        }
        self.inner.turn();
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.events.pop().or_else(|| self.inner.next_event())
    }

    fn reserve(&mut self, calls: usize) {
        self.inner.reserve(calls);
    }

    fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>) {
        self.inner.sleep(watched, timeout);
    }

    fn was_readable(&mut self, watched: RawFd) -> bool {
        self.inner.was_readable(watched)
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

/// A target with a writable file as namespace 1 whose disk hangs on demand, and a host with an I/O
/// queue there.
struct Stage {
    world: World,
    hang: Arc<Hang>,
    admin: On,
    io: On,
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (mut world, hang) = world(&file_in(&folder));
        let host = world.add_host();
        let admin = world.admin(host);
        let io = world.io(admin, 1, 32);
        Self { world, hang, admin, io, folder }
    }

    /// Creates it with a hanging write of 4096 bytes `A` to the first block.
    fn with_hanging_write() -> Self {
        let mut stage = Self::new();
        hanging_write(&mut stage.world, &stage.hang, stage.io, b'A');
        stage
    }
}

fn file_in(folder: &TempDir) -> PathBuf {
    folder.path().join("disk")
}

fn world(file: &Path) -> (World, Arc<Hang>) {
    std::fs::write(file, vec![0; 1 << 20]).unwrap();
    let config = config(&format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"{}\"\nread_only = false\n",
        file.display()
    ));
    let hang = Arc::new(Hang::default());
    let engine = || -> Box<dyn Engine> {
        let (hang, inner) = (Arc::clone(&hang), Inline::new());
        Box::new(Hanging { inner, hang, held: Vec::new(), events: Vec::new() })
    };
    let world = World::of_parts(
        &config,
        1,
        SimConfig::default(),
        &|_, backend| backend,
        |assembly, device| assembly.add::<Sim>(device),
        engine,
    );
    (world, hang)
}

fn set_cc(world: &mut World, on: On, cc: Cc) -> Status {
    let value = cc.into_bits().into();
    let set = PropertySet { property: Property::CC, size: PropertySize::FourBytes, value };
    world.status(on, &set.to_sqe(), &[])
}

fn enabled() -> Cc {
    Cc::new().with_en(true).with_iosqes(Cc::IOSQES).with_iocqes(Cc::IOCQES)
}

fn csts(world: &mut World, on: On) -> Csts {
    let get = PropertyGet { property: Property::CSTS, size: PropertySize::FourBytes };
    Csts::from_bits(world.ok(on, &get.to_sqe(), &[]).dw0.get())
}

/// Sends a write of these bytes to the disk, where it hangs.
fn hanging_write(world: &mut World, hang: &Hang, on: On, byte: u8) {
    hang.writes.store(true, Ordering::Relaxed);
    world.hosts[on.host].fill(1 << 20, 4096, byte);
    let sgl = world.keyed(on, 1 << 20, 4096);
    world.post(on, &write(1, 0, 4096).with_data(sgl), &[]);
    world.run_for(Duration::from_millis(5));
}

fn disconnect(world: &mut World, on: On) {
    let now = world.now;
    world.hosts[on.host].disconnect(now, on.queue);
}

fn try_connect(world: &mut World, host: usize) -> Status {
    let (on, _) = world.link(host, 0, 32);
    let status = world.nvme_connect(on, Cntlid::DYNAMIC, 32).status().without_flags();
    disconnect(world, on);
    world.wait_down(on);
    status
}

#[test]
fn a_reset_waits_for_writes_in_storage() {
    let Stage { mut world, hang, admin, io: old, folder: _folder } = Stage::with_hanging_write();
    assert!(set_cc(&mut world, admin, Cc::new()).is_success());
    world.wait_down(old);
    for _ in 0..10 {
        world.run_for(Duration::from_millis(10));
        assert!(csts(&mut world, admin).rdy(), "the disk has the write");
        assert_eq!(set_cc(&mut world, admin, enabled()), Status::COMMAND_SEQUENCE_ERROR);
    }
    hang.writes.store(false, Ordering::Relaxed);
    world.run_until("the reset is complete", |world| !csts(world, admin).rdy());
    assert!(set_cc(&mut world, admin, enabled()).is_success());
    let new = world.io(admin, 1, 32);
    world.write(new, 1, 0, &[b'B'; 4096]);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.read(new, 1, 0, 4096), [b'B'; 4096]);
}

#[test]
fn a_hung_write_locks_its_host_out() {
    let Stage { mut world, hang, admin, io, folder: _folder } = Stage::with_hanging_write();
    let other = world.add_host();
    disconnect(&mut world, io);
    disconnect(&mut world, admin);
    world.wait_down(admin);
    world.run_for(Duration::from_secs(60));
    assert_eq!(try_connect(&mut world, admin.host), Status::CONNECT_CONTROLLER_BUSY);
    assert!(try_connect(&mut world, other).is_success());
    hang.writes.store(false, Ordering::Relaxed);
    world.run_for(Duration::from_millis(10));
    assert!(try_connect(&mut world, admin.host).is_success());
}

#[test]
fn a_hung_read_does_not_block_reconnection() {
    let Stage { mut world, hang, admin, io, folder: _folder } = Stage::new();
    hang.reads.store(true, Ordering::Relaxed);
    let sgl = world.keyed(io, 1 << 20, 4096);
    world.post(io, &read(1, 0, 4096).with_data(sgl), &[]);
    world.run_for(Duration::from_millis(5));
    disconnect(&mut world, io);
    disconnect(&mut world, admin);
    world.wait_down(admin);
    let admin = world.admin(admin.host);
    let io = world.io(admin, 1, 32);
    world.write(io, 1, 8, &[b'B'; 4096]);
}

/// `bdev_nvme` of SPDK does this after it has examined a device.
#[test]
fn a_host_continues_after_dropping_a_queue() {
    let Stage { mut world, hang, admin, io: first, folder: _folder } = Stage::new();
    let second = world.io(admin, 2, 32);
    world.write(first, 1, 0, &[b'A'; 4096]);
    disconnect(&mut world, first);
    world.wait_down(first);
    let third = world.io(admin, 3, 32);
    let again = world.io(admin, 1, 32);
    world.run_for(Duration::from_secs(10));
    for on in [second, third, again] {
        assert_eq!(world.read(on, 1, 0, 4096), [b'A'; 4096]);
    }
    // While the disk still has a write, the next queue waits for it and is then accepted.
    hanging_write(&mut world, &hang, again, b'B');
    disconnect(&mut world, again);
    world.wait_down(again);
    hang.writes.store(false, Ordering::Relaxed);
    let again = world.io(admin, 1, 32);
    world.write(again, 1, 0, &[b'C'; 4096]);
    assert_eq!(world.read(second, 1, 0, 4096), [b'C'; 4096]);
    world.ok(second, &NvmCommand::Flush(Flush { nsid: nvme_proto::Nsid(1) }).to_sqe(), &[]);
}

#[test]
fn a_hung_operation_delays_the_stop_boundedly() {
    let Stage { mut world, io, folder: _folder, .. } = Stage::with_hanging_write();
    let start = world.now;
    world.target.stop(Stop::Now);
    world.wait_down(io);
    assert!(!world.target.groups_are_over());
    world.run_until("the target has ended", |world| world.target.groups_are_over());
    assert!(world.now - start < STORAGE_GRACE + Duration::from_secs(1), "{:?}", world.now - start);
}

#[test]
fn a_shutdown_waits_for_storage_and_flushes() {
    let Stage { mut world, hang, admin, folder: _folder, .. } = Stage::with_hanging_write();
    let shut_down = enabled().with_shn(ShutdownNotification::NORMAL);
    assert!(set_cc(&mut world, admin, shut_down).is_success());
    world.run_for(Duration::from_secs(1));
    assert_eq!(csts(&mut world, admin).shst(), ShutdownStatus::OCCURRING);
    assert_eq!(hang.syncs.load(Ordering::Relaxed), 0);
    hang.writes.store(false, Ordering::Relaxed);
    world.run_until("the shutdown is complete", |world| {
        csts(world, admin).shst() == ShutdownStatus::COMPLETE
    });
    assert_eq!(hang.syncs.load(Ordering::Relaxed), 1);
}

#[test]
fn a_flush_that_fails_after_its_connection_has_ended_is_counted() {
    let Stage { mut world, hang, admin, io, folder: _folder } = Stage::new();
    world.write(io, 1, 0, &[b'A'; 4096]);
    hang.held_syncs.store(true, Ordering::Relaxed);
    let shut_down = enabled().with_shn(ShutdownNotification::NORMAL);
    assert!(set_cc(&mut world, admin, shut_down).is_success());
    world.run_until("the flush has begun", |_| hang.syncs.load(Ordering::Relaxed) > 0);
    disconnect(&mut world, admin);
    world.wait_down(admin);
    world.run_for(Duration::from_millis(5));
    assert_eq!(world.target.inventory().storage_errors(1), []);
    hang.syncs_fail.store(true, Ordering::Relaxed);
    world.run_until("the connections are over", |world| world.target.connections() == 0);
    let errors = world.target.inventory().storage_errors(1);
    assert_eq!(errors.iter().map(|of| of.write_errors).collect::<Vec<_>>(), [1]);
}

#[test]
fn write_protection_waits_for_storage_and_flushes() {
    let Stage { mut world, hang, io, folder, .. } = Stage::with_hanging_write();
    let other = world.add_host();
    let admin = world.admin(other);
    let feature = Feature::NamespaceWriteProtection(WriteProtection::Protected);
    let set = SetFeatures { nsid: nvme_proto::Nsid(1), save: false, feature };
    let cid = world.post(admin, &set.to_sqe(), &[]);
    world.run_for(Duration::from_secs(1));
    assert!(world.take_response(admin, cid).is_none(), "a write is in storage");
    let sgl = world.keyed(io, 0, 4096);
    let refused = world.status(io, &write(1, 8, 4096).with_data(sgl), &[]);
    assert_eq!(refused, Status::NAMESPACE_IS_WRITE_PROTECTED);
    hang.writes.store(false, Ordering::Relaxed);
    assert!(world.response(admin, cid).status().is_success());
    assert_eq!(hang.syncs.load(Ordering::Relaxed), 1);
    assert_eq!(std::fs::read(file_in(&folder)).unwrap()[..4096], [b'A'; 4096]);
}
