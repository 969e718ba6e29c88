//! Single facts about volumes.

use feedrail_checkpoint::{
    Change, CheckpointName, EntryName, Error, Formatting, Lease, NamespaceAttributes, Reading,
    SUPERBLOCK_OFFSETS, Signature, Superblock, Volume, VolumeFormatError,
};
use uuid::Uuid;

use crate::simulator::{Ended, SimulatedDevice, format, open};

#[test]
fn formatting_is_refused_where_something_is() {
    let mut device = SimulatedDevice::new(1 << 20, 1);
    device.durable()[1080..1082].copy_from_slice(b"\x53\xEF");
    let facts = NamespaceAttributes { bytes: device.size(), has_compare: false };
    let mut attempt =
        |is_forced| device.drive(Formatting::new(facts, Uuid::nil(), 12, is_forced).unwrap(), &[]);
    assert_eq!(format!("{:?}", attempt(false)), "Well(Err(Occupied(Ext4)))");
    assert_eq!(format!("{:?}", attempt(true)), "Well(Ok(()))");
    assert_eq!(
        format!("{:?}", attempt(false)),
        format!("Well(Err(Occupied({:?})))", Signature::Checkpoint)
    );
}

#[test]
fn a_small_namespace_is_refused() {
    let facts = NamespaceAttributes { bytes: 1 << 20, has_compare: false };
    let refused = Formatting::new(facts, Uuid::nil(), 20, false).unwrap_err();
    assert_eq!(refused, Error::TooSmall { bytes: 1 << 20, needed: 8 << 20 });
}

#[test]
fn a_newer_version_is_refused() {
    let mut device = SimulatedDevice::new(1 << 20, 1);
    format(&mut device, 12);
    assert!(!open(&mut device, false).unwrap().is_fallen_back());
    let block = &mut device.durable()[..4096];
    block[8] = 2;
    let crc = crc32c::crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(open(&mut device, false).unwrap_err(), Error::Format(VolumeFormatError::Newer));
    device.durable()[8] = 1;
    assert_eq!(open(&mut device, false).unwrap_err(), Error::Format(VolumeFormatError::Crc));
    device.durable()[..8].fill(0);
    assert_eq!(open(&mut device, false).unwrap_err(), Error::Format(VolumeFormatError::Magic));
}

#[test]
fn a_superblock_is_read_as_it_was_written() {
    let mut device = SimulatedDevice::new(1 << 20, 1);
    format(&mut device, 12);
    let superblock = *open(&mut device, false).unwrap().superblock();
    let bytes = superblock.encode();
    assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    for length in 0..4096 {
        Superblock::decode(&bytes[..length]).unwrap_err();
    }
    for index in 0..4096 {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1;
        Superblock::decode(&damaged).unwrap_err();
    }
}

/// A superblock that no writer makes: it shares one copy of the manifest with the newer one.
#[test]
fn a_copy_that_two_superblocks_name_is_not_freed() {
    let mut device = SimulatedDevice::new(1 << 20, 1);
    format(&mut device, 12);
    let present = *open(&mut device, false).unwrap().superblock();
    let [first, second] = present.manifest_units;
    let newer = Superblock { generation: 2, manifest_units: [first, second - 1], ..present };
    let copy = device.durable()[first as usize * 4096..][..4096].to_vec();
    device.durable()[(second - 1) as usize * 4096..][..4096].copy_from_slice(&copy);
    device.durable()[SUPERBLOCK_OFFSETS[1] as usize..][..4096].copy_from_slice(&newer.encode());

    let mut volume = open(&mut device, false).unwrap();
    let lease = Lease { host: Uuid::nil(), number: 1, expiry_ms: 2 };
    let claiming = volume.publish(&Change::new().lease(lease), 1).unwrap();
    assert_eq!(device.drive(claiming, &[]), Ended::Well(Ok(())));
    assert_eq!(volume.free_bytes(), open(&mut device, false).unwrap().free_bytes());
}

/// The room that a save must leave serves each time that the manifest is written again.
#[test]
fn a_full_volume_mends_a_damaged_copy() {
    let mut device = SimulatedDevice::new(39 << 12, 1);
    format(&mut device, 12);
    let lease = Lease { host: Uuid::nil(), number: 1, expiry_ms: 2 };
    let claim = |device: &mut SimulatedDevice, volume: &mut Volume| {
        let claiming = volume.publish(&Change::new().lease(lease), 1).unwrap();
        assert_eq!(device.drive(claiming, &[]), Ended::Well(Ok(())));
    };
    let mut volume = open(&mut device, false).unwrap();
    claim(&mut device, &mut volume);
    let name = CheckpointName::new("full").unwrap();
    let mut save = volume.begin(name, 1, Vec::new(), 1).unwrap();
    let index = volume.add_entry(&mut save, EntryName::new("entry").unwrap(), 4096).unwrap();
    let writing = volume.write(&mut save, index, 0, &[7; 4096], 1).unwrap();
    assert_eq!(device.drive(writing, &[7; 4096]), Ended::Well(Ok(())));
    let commit = volume.publish(&Change::new().commit(&save), 1).unwrap();
    assert_eq!(device.drive(commit, &[]), Ended::Well(Ok(())));

    for _ in 0..3 {
        let copy = volume.superblock().manifest_units[0] as usize * 4096;
        device.durable()[copy] ^= 1;
        volume = open(&mut device, false).unwrap();
        assert_eq!(volume.manifest().checkpoints.len(), 1);
        claim(&mut device, &mut volume);
        assert_eq!(volume.damaged_manifest_copies(), [false; 2]);
    }
}

/// Two files grow in turns; the second commit replaces what the first one has made.
#[test]
fn files_make_and_change_a_checkpoint() {
    let mut device = SimulatedDevice::new(1 << 20, 1);
    format(&mut device, 12);
    let mut volume = open(&mut device, false).unwrap();
    let lease = Lease { host: Uuid::nil(), number: 1, expiry_ms: 100 };
    let claiming = volume.publish(&Change::new().lease(lease), 1).unwrap();
    assert_eq!(device.drive(claiming, &[]), Ended::Well(Ok(())));
    let free = volume.free_bytes();
    let mut saves = [2, 3].map(|now_ms| {
        let name = CheckpointName::new("step-12").unwrap();
        let mut save = volume.begin_entries(name, now_ms).unwrap();
        volume.add_entry(&mut save, EntryName::new("dir/a").unwrap(), 0).unwrap();
        save
    });
    for offset in [0, 4096] {
        for (save, byte) in saves.iter_mut().zip([7, 8]) {
            let bytes = [byte; 4096];
            volume.extend_entry(save, 0, 4096).unwrap();
            let writing = volume.write(save, 0, offset, &bytes, 4).unwrap();
            assert_eq!(device.drive(writing, &bytes), Ended::Well(Ok(())));
        }
    }
    for (save, byte) in saves.iter().zip([7, 8]) {
        let commit = volume.publish(&Change::new().commit(save), 4).unwrap();
        assert_eq!(device.drive(commit, &[]), Ended::Well(Ok(())));
        let volume = open(&mut device, false).unwrap();
        let checkpoint = volume.manifest().checkpoint("step-12").unwrap();
        assert_eq!((checkpoint.step, checkpoint.created_ms), (12, 2));
        assert_eq!(checkpoint.entries.len(), 1);
        let plan = volume.read_plan("step-12", "dir/a", 0..8192).unwrap();
        assert_eq!(device.drive(Reading::new(plan), &[]), Ended::Well(Ok(vec![byte; 8192])));
    }
    // Both superblocks name a manifest of their own now.
    assert_eq!(volume.free_bytes(), free - 4 * 4096);
    assert_eq!(volume.free_bytes(), open(&mut device, false).unwrap().free_bytes());
    let end = volume.begin_entries(CheckpointName::new("x").unwrap(), 100);
    assert!(matches!(end, Err(Error::NoLease)));
}

/// Clocks that differ by more than the grace period.
#[test]
fn a_clock_that_is_ten_minutes_off_loses_no_commit() {
    const NOW: u64 = 1_000_000;
    const OFF: u64 = 600_000;
    let mut device = SimulatedDevice::new(1 << 20, 1);
    format(&mut device, 12);
    let claim = |number, now_ms| {
        let lease = Lease { host: Uuid::nil(), number, expiry_ms: now_ms + 60_000 };
        Change::new().lease(lease)
    };
    let mut first = open(&mut device, false).unwrap();
    let claiming = first.publish(&claim(1, NOW), NOW).unwrap();
    assert_eq!(device.drive(claiming, &[]), Ended::Well(Ok(())));

    // A writer behind is refused, for longer than necessary.
    let mut second = open(&mut device, false).unwrap();
    let refused = second.publish(&claim(2, NOW - OFF), NOW - OFF).unwrap_err();
    assert!(matches!(refused, Error::Leased { .. }), "{refused}");

    // One ahead takes the lease, and its commit stays: the first one finds out before its own.
    let commit = |device: &mut SimulatedDevice, volume: &mut Volume, name: &str, now_ms| {
        let save = volume.begin(CheckpointName::new(name).unwrap(), 1, Vec::new(), now_ms).unwrap();
        let commit = volume.publish(&Change::new().commit(&save), now_ms).unwrap();
        device.drive(commit, &[])
    };
    let claiming = second.publish(&claim(2, NOW + OFF), NOW + OFF).unwrap();
    assert_eq!(device.drive(claiming, &[]), Ended::Well(Ok(())));
    assert_eq!(commit(&mut device, &mut second, "second", NOW + OFF), Ended::Well(Ok(())));
    assert_eq!(commit(&mut device, &mut first, "first", NOW + 1), Ended::Well(Err(Error::Fenced)));
    let names = open(&mut device, false).unwrap();
    let names: Vec<_> = names.manifest().checkpoints.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["second"]);
}
