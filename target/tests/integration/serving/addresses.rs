//! Zero copy: the memory that io_uring fills or empties is the memory of the work request.
//!
//! The provider is a recording one. The transport is the same code for every provider, and the
//! recording one sees exactly what verbs would get: with verbs the device moves the bytes, so the
//! processor does not.

use std::path::Path;

use feedrail_target::Config;
use feedrail_target::config::Cores;
use feedrail_target::testing::Uring;
use nvme_proto::{NvmCommand, Sgl, Status};
use rdma::Op;
use rdma::sim::SimConfig;
use tempfile::TempDir;

use super::pattern;
use super::recording::{Record, Recorder, Recording, RecordingDevice, RecordingEngine, Stretch};
use super::world::{NQN, On, World, config, io, read, write};

/// Not a multiple of any block size.
const FILE_BYTES: usize = (256 << 10) + 100;
const SCRATCH_BYTES: usize = 256 << 10;

struct Scene {
    world: World,
    on: On,
    recorder: Recorder,
    pool: Stretch,
    /// Whether io_uring has the pool as fixed buffers.
    fixed: bool,
    file: Vec<u8>,
    _folder: TempDir,
}

impl Scene {
    /// A target that exports a read-only and a writable file; `None` without io_uring.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = pattern(FILE_BYTES, 5);
        let [shard, scratch] = ["shard", "scratch"].map(|name| folder.path().join(name));
        std::fs::write(&shard, &file).unwrap();
        std::fs::write(&scratch, vec![0; SCRATCH_BYTES]).unwrap();
        let recorder = Recorder::default();
        if let Err(error) = Uring::new(None) {
            eprintln!("not tested, without io_uring: {error}");
            return None;
        }
        let mut world = World::of_parts(
            &files(&shard, &scratch),
            1,
            SimConfig::default(),
            &|_, backend| backend,
            |assembly, device| {
                let recorder = recorder.clone();
                assembly.add::<Recording>(RecordingDevice { device, recorder })
            },
            || Box::new(RecordingEngine::new(recorder.clone()).unwrap()),
        );
        let pool = recorder.pool();
        let fixed = recorder.take().iter().any(|record| matches!(record, Record::Fixed));
        let host = world.add_host();
        let admin = world.admin(host);
        let on = world.io(admin, 1, 32);
        Some(Self { world, on, recorder, pool, fixed, file, _folder: folder })
    }

    /// Work requests of the target for one read command, which must return `expected`.
    fn read(&mut self, slba: u64, expected: &[u8]) -> Vec<Record> {
        self.recorder.take();
        assert!(self.world.read(self.on, 1, slba, expected.len()) == expected);
        self.recorder.take()
    }

    /// The only memory range that `of` finds.
    fn only(records: &[Record], of: impl Fn(&Record) -> Option<Stretch>) -> Stretch {
        let found: Vec<_> = records.iter().filter_map(of).collect();
        assert_eq!(found.len(), 1, "{records:?}");
        found[0]
    }

    /// Asserts that every read and write of a file used fixed buffers.
    fn assert_fixed(&mut self) {
        let engine = self.world.target.stats()[0].engine;
        let expected = if self.fixed { engine.reads + engine.writes } else { 0 };
        assert_eq!((engine.fixed, engine.plain), (expected, 0), "{engine:?}");
    }
}

fn files(shard: &Path, scratch: &Path) -> Config {
    let mut config = config(&format!(
        "[limits]\nmax_transfer_bytes = \"256KiB\"\npool_bytes = \"2MiB\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nkind = \"file\"\npath = {shard:?}\nlba_bytes = 512\n\
         [[subsystem.namespace]]\nkind = \"file\"\npath = {scratch:?}\nlba_bytes = 512\nread_only = false\n"
    ));
    config.cores = Cores::Count(1);
    config
}

fn file_read(record: &Record) -> Option<Stretch> {
    if let Record::FileRead(stretch) = record { Some(*stretch) } else { None }
}

fn file_written(record: &Record) -> Option<Stretch> {
    if let Record::FileWrite(stretch) = record { Some(*stretch) } else { None }
}

/// Memory of an RDMA WRITE, which has one element.
fn sent_to_host(record: &Record) -> Option<Stretch> {
    match record {
        Record::Send(Op::RdmaWrite { .. }, stretches) => {
            assert_eq!(stretches.len(), 1);
            Some(stretches[0])
        }
        _ => None,
    }
}

/// Memory of an RDMA READ, which has one element.
fn fetched_from_host(record: &Record) -> Option<Stretch> {
    match record {
        Record::Send(Op::RdmaRead { .. }, stretches) => {
            assert_eq!(stretches.len(), 1);
            Some(stretches[0])
        }
        _ => None,
    }
}

#[test]
fn reads_go_from_io_uring_buffers_to_the_host() {
    let Some(mut scene) = Scene::new() else { return };
    for (slba, length) in [(0, 4096), (8, 131_072), (3, 512), (0, 262_144)] {
        let at = slba as usize * 512;
        let expected = scene.file[at..at + length].to_vec();
        let records = scene.read(slba, &expected);
        let filled = Scene::only(&records, file_read);
        assert_eq!(filled, Scene::only(&records, sent_to_host));
        assert_eq!(filled.length, length as u64);
        assert!(scene.pool.contains(filled), "{filled:?}");
    }
    scene.assert_fixed();
}

/// The last block is partly beyond the end of the file: its zeros are made in place.
#[test]
fn an_unaligned_tail_is_read_in_place() {
    let Some(mut scene) = Scene::new() else { return };
    for blocks in [1, 17] {
        let slba = FILE_BYTES.div_ceil(512) - blocks;
        let mut expected = scene.file[slba * 512..].to_vec();
        expected.resize(blocks * 512, 0);
        let records = scene.read(slba as u64, &expected);
        let filled = Scene::only(&records, file_read);
        assert_eq!(filled, Scene::only(&records, sent_to_host));
    }
    scene.assert_fixed();
}

#[test]
fn writes_go_from_fetched_buffers_to_io_uring() {
    let Some(mut scene) = Scene::new() else { return };
    for (slba, length) in [(0, 8192), (100, 65_536), (0, SCRATCH_BYTES)] {
        let bytes = pattern(length, slba as u32);
        scene.recorder.take();
        scene.world.write(scene.on, 2, slba, &bytes);
        let records = scene.recorder.take();
        let emptied = Scene::only(&records, file_written);
        assert_eq!(emptied, Scene::only(&records, fetched_from_host));
        assert_eq!(emptied.length, length as u64);
        assert!(scene.pool.contains(emptied), "{emptied:?}");
        assert!(scene.world.read(scene.on, 2, slba, length) == bytes);
    }
    scene.assert_fixed();
}

#[test]
fn a_compare_reads_the_medium_into_aligned_memory() {
    let Some(mut scene) = Scene::new() else { return };
    let on = scene.on;
    for length in [512, 1536, 4096] {
        let bytes = scene.file[..length].to_vec();
        scene.world.hosts[on.host].put(0, &bytes);
        let data = scene.world.keyed(on, 0, length);
        let compare = NvmCommand::Compare(io(1, 0, length)).to_sqe().with_data(data);
        scene.recorder.take();
        scene.world.ok(on, &compare, &[]);
        let filled = Scene::only(&scene.recorder.take(), file_read);
        assert!(filled.address.is_multiple_of(4096) && filled.length == length as u64);
        scene.world.hosts[on.host].put(length - 1, &[bytes[length - 1] ^ 1]);
        assert_eq!(scene.world.status(on, &compare, &[]), Status::COMPARE_FAILURE);
    }
    scene.assert_fixed();
}

/// Data in a capsule is written from where the device received it.
#[test]
fn in_capsule_data_is_written_from_the_receive() {
    let Some(mut scene) = Scene::new() else { return };
    let receives: Vec<Stretch> = (scene.recorder.take().into_iter())
        .filter_map(|record| match record {
            Record::Receive(stretches) => stretches.get(1).copied(),
            _ => None,
        })
        .collect();
    let bytes = pattern(4096, 1);
    let sqe = write(2, 8, 4096).with_data(Sgl::InCapsule { offset: 0, length: 4096 });
    scene.world.ok(scene.on, &sqe, &bytes);
    let records = scene.recorder.take();
    let emptied = Scene::only(&records, file_written);
    assert!(receives.iter().any(|receive| receive.address == emptied.address), "{emptied:?}");
    assert!(!records.iter().any(|record| fetched_from_host(record).is_some()));
    assert!(scene.world.read(scene.on, 2, 8, 4096) == bytes);
}

/// Concurrent commands have separate memory.
#[test]
fn each_command_under_way_has_its_own_memory() {
    const COMMANDS: usize = 16;
    const LENGTH: usize = 32 << 10;
    let Some(mut scene) = Scene::new() else { return };
    let on = scene.on;
    scene.recorder.take();
    let cids: Vec<_> = (0..COMMANDS)
        .map(|index| {
            let data = scene.world.keyed(on, index * LENGTH, LENGTH);
            let sqe = read(1, (index % 8 * LENGTH / 512) as u64, LENGTH).with_data(data);
            scene.world.post(on, &sqe, &[])
        })
        .collect();
    for cid in cids {
        assert!(scene.world.response(on, cid).status().is_success());
    }
    for index in 0..COMMANDS {
        let at = index % 8 * LENGTH;
        let got = scene.world.hosts[on.host].get(index * LENGTH, LENGTH);
        assert!(*got == scene.file[at..at + LENGTH]);
    }
    let records = scene.recorder.take();
    let filled: Vec<_> = records.iter().filter_map(file_read).collect();
    let sent: Vec<_> = records.iter().filter_map(sent_to_host).collect();
    assert_eq!((filled.len(), sent.len()), (COMMANDS, COMMANDS));
    assert!(sent.iter().all(|stretch| filled.contains(stretch)), "{records:?}");
    scene.assert_fixed();
}
