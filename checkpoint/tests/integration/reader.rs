//! A reader in Python, written from the page about the format, reads what this crate writes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use feedrail_checkpoint::{Change, CheckpointName, EntryName, Lease, Volume};
use uuid::Uuid;

use crate::simulator::{Ended, SimulatedDevice, format, open};

const UNIT: usize = 4096;
const NOW_MS: u64 = 1_764_400_000_000;

/// Lengths of the entries of each checkpoint.
const LENGTHS: [&[usize]; 4] = [&[2 * UNIT], &[1, UNIT], &[0, 5 * UNIT + 7, UNIT - 1], &[]];

/// Returns the bytes of an entry, which differ for each number and length.
fn bytes(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251 + number + length) as u8).collect()
}

fn publish(device: &mut SimulatedDevice, volume: &mut Volume, change: &Change<'_>) {
    let publishing = volume.publish(change, NOW_MS).unwrap();
    assert_eq!(device.drive(publishing, &[]), Ended::Well(Ok(())));
}

/// Saves the checkpoint of this number, and returns its lines in the reader's output.
fn save(device: &mut SimulatedDevice, volume: &mut Volume, number: usize) -> String {
    let name = format!("step {number}");
    let metadata = vec![number as u8; number];
    let hex = format!("{number:02x}").repeat(number);
    let mut lines = format!("checkpoint\t{name}\t{number}\t{NOW_MS}\t{hex}\n");
    let name = CheckpointName::new(&name).unwrap();
    let mut save = volume.begin(name, number as u64, metadata, NOW_MS).unwrap();
    for (rank, &length) in LENGTHS[number].iter().enumerate() {
        let name = format!("rank{rank}/größe.{number}");
        let bytes = bytes(number, length);
        let entry = EntryName::new(&name).unwrap();
        let index = volume.add_entry(&mut save, entry, length as u64).unwrap();
        let writing = volume.write(&mut save, index, 0, &bytes, NOW_MS).unwrap();
        assert_eq!(device.drive(writing, &bytes), Ended::Well(Ok(())));
        writeln!(lines, "entry\t{name}\t{length}\t{:08x}", crc32c::crc32c(&bytes)).unwrap();
    }
    publish(device, volume, &Change::new().commit(&save));
    lines
}

/// Runs the reader on an image of a device; `None` without Python.
fn read(device: &mut SimulatedDevice, name: &str) -> Option<Output> {
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&image, device.durable()).unwrap();
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reader.py");
    let output =
        Command::new("python3").arg(reader).arg(&image).env("PYTHONUTF8", "1").output().ok();
    std::fs::remove_file(&image).unwrap();
    output
}

#[test]
fn the_reader_in_python_agrees() {
    let mut device = SimulatedDevice::new(1 << 20, 1);
    format(&mut device, 12);
    let mut volume = open(&mut device, false).unwrap();
    let lease = Lease { host: Uuid::nil(), number: 1, expiry_ms: u64::MAX };
    publish(&mut device, &mut volume, &Change::new().lease(lease));
    save(&mut device, &mut volume, 0);
    let mut expected = save(&mut device, &mut volume, 1);
    publish(&mut device, &mut volume, &Change::new().delete("step 0"));
    publish(&mut device, &mut volume, &Change::new().lease(lease));
    // This one fills the gap, and continues behind the others.
    expected += &save(&mut device, &mut volume, 2);
    expected += &save(&mut device, &mut volume, 3);
    let superblock = *volume.superblock();
    let fragmented = volume.manifest().checkpoints.iter().flat_map(|one| &one.entries);
    assert!(fragmented.into_iter().any(|entry| entry.extents.len() > 1));
    let expected = format!("generation\t{}\n{expected}", superblock.generation);

    let Some(output) = read(&mut device, "whole") else {
        println!("skipped: the reader in Python, because python3 is not installed");
        return;
    };
    let text = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text(&output), expected);

    // It takes the second copy of a manifest.
    device.durable()[superblock.manifest_units[0] as usize * UNIT + 50] ^= 1;
    assert_eq!(text(&read(&mut device, "copy").unwrap()), expected);

    // It refuses damaged data, and a newer version.
    let checkpoint = volume.manifest().checkpoint("step 1").unwrap();
    device.durable()[checkpoint.entries[1].extents[0].first as usize * UNIT] ^= 1;
    let output = read(&mut device, "data").unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("Damaged: CRC of unit"));
    for offset in [0, 65_536] {
        let block = &mut device.durable()[offset..offset + 4096];
        block[8] = 2;
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
    }
    let output = read(&mut device, "newer").unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("Newer: superblock"));
}
