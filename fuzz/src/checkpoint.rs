//! Checkpoint volumes: superblocks, manifests, and what a reader and a writer make of them.

use std::collections::BTreeMap;
use std::ops::Range;

use feedrail_checkpoint::{
    Change, CheckpointName, CheckpointTable, EntryName, Error, Lease, NamespaceAttributes, Opening,
    OperationOutcome, Procedure, Reading, Request, Run, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS,
    Superblock, Volume, WritePayload,
};
use uuid::Uuid;

use crate::allocations::peak_bytes;
use crate::input::Input;

/// Size of the namespace, in bytes.
pub const NAMESPACE_BYTES: usize = DATA_OFFSET + UNITS * UNIT_BYTES;

/// Bytes in front of the units of data.
const DATA_OFFSET: usize = 131_072;
const UNIT_BYTES: usize = 4096;
const UNITS: usize = 16;
/// Bytes of a superblock that an input has; zeros and the checksum follow.
const FIELDS_BYTES: usize = 128;
/// Memory that opening may take whatever the namespace holds: superblocks, and a manifest that is
/// read and refused.
const FIXED_BYTES: usize = 2 * UNITS * UNIT_BYTES;
/// Bytes of memory that opening may take for each byte of the input.
const BYTES_FOR_EACH: usize = 48;

/// Time at which the leases of the seeds have ended.
const NOW_MS: u64 = 100_000;
const LEASE: Lease = Lease { host: Uuid::nil(), number: 77, expiry_ms: 200_000 };

/// Flags, the fields of both superblocks, then pieces with the unit where each begins. A flag for
/// each superblock makes its checksum right, and one for each that of the manifest which it names.
///
/// Opening takes memory in proportion, and reads nothing behind the end of the namespace. A volume
/// that opens can be changed: afterwards it has the expected table, and all entries that are still
/// there read as before.
pub fn run(data: &[u8]) {
    let mut namespace = namespace(data);
    for offset in SUPERBLOCK_OFFSETS {
        check_superblock(&namespace, offset as usize);
    }
    let (opened, peak) = peak_bytes(|| open(&mut namespace));
    let limit = FIXED_BYTES + BYTES_FOR_EACH * data.len();
    assert!(peak <= limit, "{peak} bytes of memory for an input of {} bytes", data.len());
    match opened {
        Ok(volume) => check_volume(volume, &mut namespace),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Executes a procedure on a namespace in memory.
///
/// # Errors
/// The error with which the procedure ends.
///
/// # Panics
/// An operation is not inside the namespace, or not of whole blocks.
pub fn execute<P: Procedure>(
    procedure: P,
    namespace: &mut [u8],
    source: &[u8],
) -> Result<P::Output, Error> {
    let mut run = Run::new(procedure);
    while let Some(operation) = run.operation() {
        let outcome = match operation.request {
            Request::Read { offset, length } => {
                OperationOutcome::Data(namespace[range(offset, length)].to_vec())
            }
            Request::Write { offset, payload, .. } => {
                let bytes = match payload {
                    WritePayload::Bytes(bytes) => bytes,
                    WritePayload::Source { range, padding } => {
                        [&source[range], &vec![0; padding]].concat()
                    }
                };
                namespace[range(offset, bytes.len() as u64)].copy_from_slice(&bytes);
                OperationOutcome::Done
            }
            Request::Deallocate { offset, length } => {
                namespace[range(offset, length)].fill(0);
                OperationOutcome::Done
            }
            Request::Flush | Request::CompareAndWrite { .. } | Request::Pause { .. } => {
                OperationOutcome::Done
            }
        };
        run.complete(operation.id, outcome);
    }
    run.finish().expect("a procedure without operations has ended")
}

fn range(offset: u64, length: u64) -> Range<usize> {
    assert!(offset.is_multiple_of(4096) && length.is_multiple_of(4096));
    offset as usize..(offset + length) as usize
}

/// Returns the input that stands for a namespace of [`NAMESPACE_BYTES`].
pub fn input(namespace: &[u8]) -> Vec<u8> {
    let mut input = vec![0x0F, 0, 0, 0, 0, 0, 0, 0];
    for offset in SUPERBLOCK_OFFSETS {
        input.extend(&namespace[offset as usize..][..FIELDS_BYTES]);
    }
    for (unit, bytes) in namespace[DATA_OFFSET..].chunks(UNIT_BYTES).enumerate() {
        let Some(last) = bytes.iter().rposition(|&byte| byte != 0) else { continue };
        let length = (last + 1).next_multiple_of(8);
        let [low, high] = (length as u16).to_le_bytes();
        input.extend([unit as u8, 0, low, high, 0, 0, 0, 0]);
        input.extend(&bytes[..length]);
    }
    input
}

/// Makes the namespace that an input stands for.
fn namespace(data: &[u8]) -> Vec<u8> {
    let mut input = Input::new(data);
    let mut namespace = vec![0; NAMESPACE_BYTES];
    let flags = input.u64();
    for offset in SUPERBLOCK_OFFSETS {
        let fields: [u8; FIELDS_BYTES] = input.array();
        namespace[offset as usize..][..FIELDS_BYTES].copy_from_slice(&fields);
    }
    while !input.is_empty() {
        let place = &mut namespace[DATA_OFFSET + input.choice(UNITS) * UNIT_BYTES..];
        input.u8();
        let length = input.u16();
        input.u32();
        let bytes = input.slice(usize::from(length).min(place.len()));
        place[..bytes.len()].copy_from_slice(bytes);
    }
    for (slot, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        if flags & (4 << slot) != 0 {
            correct_manifest(&mut namespace, offset as usize);
        }
        if flags & (1 << slot) != 0 {
            let block = &mut namespace[offset as usize..][..SUPERBLOCK_BYTES];
            let crc = crc32c::crc32c(&block[..SUPERBLOCK_BYTES - 4]);
            block[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        }
    }
    namespace
}

/// Stores the checksum of the first copy of the manifest that a superblock names.
fn correct_manifest(namespace: &mut [u8], at: usize) {
    let field = |offset: usize| {
        let bytes = namespace[at + offset..][..8].try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let begin = field(64).and_then(|unit| unit.checked_mul(UNIT_BYTES));
    let manifest = begin.and_then(|begin| namespace.get(begin..begin.checked_add(field(80)?)?));
    if let Some(manifest) = manifest {
        let crc = crc32c::crc32c(manifest);
        namespace[at + 88..][..4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Checks that a superblock and a manifest that are accepted are written as they were read.
fn check_superblock(namespace: &[u8], at: usize) {
    let Ok(superblock) = Superblock::decode(&namespace[at..]) else { return };
    assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    let Superblock { uuid, generation, geometry, .. } = superblock;
    let begin = superblock.manifest_units[0].saturating_mul(geometry.unit_bytes());
    let begin = (begin as usize).min(namespace.len());
    let end = begin.saturating_add(superblock.manifest_bytes as usize).min(namespace.len());
    let decode = |bytes: &[u8]| CheckpointTable::decode(bytes, uuid, generation, &geometry);
    if let Ok((table, origin)) = decode(&namespace[begin..end]) {
        let again = table.encode(uuid, origin).expect("it was encoded before");
        assert_eq!(decode(&again), Ok((table, origin)));
    }
}

fn open(namespace: &mut [u8]) -> Result<Volume, Error> {
    let attributes = NamespaceAttributes { bytes: NAMESPACE_BYTES as u64, has_compare: false };
    execute(Opening::new(attributes), namespace, &[])
}

/// Results of reading all entries, by name of checkpoint and entry.
type Contents = BTreeMap<(String, String), Result<Vec<u8>, Error>>;

fn read_all(volume: &Volume, namespace: &mut [u8]) -> Contents {
    let mut contents = Contents::new();
    for checkpoint in &volume.manifest().checkpoints {
        for entry in &checkpoint.entries {
            let names = (checkpoint.name.as_str(), entry.name.as_str());
            let plan = volume.read_plan(names.0, names.1, 0..entry.length).expect("it exists");
            assert!(plan.pieces.iter().all(|piece| piece.offset >= DATA_OFFSET as u64));
            let bytes = execute(Reading::new(plan), namespace, &[]);
            match &bytes {
                Ok(bytes) => assert_eq!(bytes.len() as u64, entry.length),
                Err(error) => assert!(matches!(error, Error::Damaged { .. }), "{error}"),
            }
            contents.insert((names.0.to_owned(), names.1.to_owned()), bytes);
        }
    }
    contents
}

/// Takes the lease, deletes the first checkpoint, saves one, and reads the volume again.
fn check_volume(mut volume: Volume, namespace: &mut [u8]) {
    assert!(volume.free_bytes() <= (UNITS * UNIT_BYTES) as u64);
    let mut contents = read_all(&volume, namespace);
    execute(volume.check_manifest(), namespace, &[]).expect("damage is no error");
    let Ok(publishing) = volume.publish(&Change::new().lease(LEASE), NOW_MS) else { return };
    assert_eq!(execute(publishing, namespace, &[]), Ok(()));
    if let Some(first) = volume.manifest().checkpoints.first() {
        let name = first.name.as_str().to_owned();
        if let Ok(publishing) = volume.publish(&Change::new().delete(&name), NOW_MS) {
            assert_eq!(execute(publishing, namespace, &[]), Ok(()));
            contents.retain(|(checkpoint, _), _| *checkpoint != name);
        }
    }
    save(&mut volume, namespace, &mut contents);
    let again = open(namespace).expect("a volume that was changed opens");
    assert_eq!(again.manifest(), volume.manifest());
    assert_eq!(again.damaged_manifest_copies(), [false; 2]);
    assert_eq!(read_all(&again, namespace), contents);
}

/// Saves a checkpoint of one entry, if there is space and no checkpoint has its name.
fn save(volume: &mut Volume, namespace: &mut [u8], contents: &mut Contents) {
    let (name, entry) = ("made-by-the-fuzzer", "entry");
    let checkpoint = CheckpointName::new(name).expect("a good name");
    let Ok(mut save) = volume.begin(checkpoint, 1, Vec::new(), NOW_MS) else { return };
    let bytes = [7; UNIT_BYTES + 100];
    let unit_bytes = volume.superblock().geometry.unit_bytes() as usize;
    let bytes = &bytes[..bytes.len().min(unit_bytes)];
    let added = volume.add_entry(
        &mut save,
        EntryName::new(entry).expect("a good name"),
        bytes.len() as u64,
    );
    let Ok(index) = added else { return };
    let writing = volume.write(&mut save, index, 0, bytes, NOW_MS).expect("a whole entry");
    assert_eq!(execute(writing, namespace, bytes), Ok(()));
    match volume.publish(&Change::new().commit(&save), NOW_MS) {
        Ok(publishing) => assert_eq!(execute(publishing, namespace, &[]), Ok(())),
        Err(_) => return volume.abort(save),
    }
    contents.insert((name.to_owned(), entry.to_owned()), Ok(bytes.to_vec()));
}
