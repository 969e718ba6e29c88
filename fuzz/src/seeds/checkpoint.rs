//! Checkpoint volumes that the crate wrote.

use anyhow::Result;
use feedrail_checkpoint::{
    Change, CheckpointName, EntryName, Formatting, Lease, NamespaceAttributes, Opening, Volume,
};
use feedrail_fuzz::checkpoint::{NAMESPACE_BYTES, execute, input};
use uuid::Uuid;

use super::Seeds;

const NOW_MS: u64 = 1;

/// The volume after each of some changes: formatting, a lease, saves of several entries, a deletion
/// that leaves a gap, a save that fills it, and a release of the lease.
pub(super) fn volumes() -> Result<Seeds> {
    let attributes = NamespaceAttributes { bytes: NAMESPACE_BYTES as u64, has_compare: false };
    let mut namespace = vec![0; NAMESPACE_BYTES];
    let formatting = Formatting::new(attributes, Uuid::from_u128(7), 12, false)?;
    execute(formatting, &mut namespace, &[])?;
    let mut volume = execute(Opening::new(attributes), &mut namespace, &[])?;
    let mut seeds = Seeds::new();
    seeds.insert("formatted".to_owned(), input(&namespace));
    let lease = Lease { host: Uuid::from_u128(8), number: 9, expiry_ms: 500 };
    let mut publish =
        |volume: &mut Volume, namespace: &mut Vec<u8>, name: &str, change: &Change<'_>| {
            execute(volume.publish(change, NOW_MS)?, namespace, &[])?;
            seeds.insert(name.to_owned(), input(namespace));
            anyhow::Ok(())
        };
    publish(&mut volume, &mut namespace, "leased", &Change::new().lease(lease))?;
    for (number, lengths) in [&[20][..], &[4096, 30], &[4100, 0]].into_iter().enumerate() {
        let name = format!("step-{number}");
        let metadata = b"{\"loss\":1}".to_vec();
        let checkpoint = CheckpointName::new(&name)?;
        let mut save = volume.begin(checkpoint, number as u64, metadata, NOW_MS)?;
        for (rank, &length) in lengths.iter().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|at: usize| u8::from(at < 16)).collect();
            let entry = EntryName::new(&format!("rank{rank}/model"))?;
            let index = volume.add_entry(&mut save, entry, length as u64)?;
            let writing = volume.write(&mut save, index, 0, &bytes, NOW_MS)?;
            execute(writing, &mut namespace, &bytes)?;
        }
        publish(&mut volume, &mut namespace, &name, &Change::new().commit(&save))?;
        if number == 1 {
            publish(&mut volume, &mut namespace, "deleted", &Change::new().delete("step-0"))?;
        }
    }
    publish(&mut volume, &mut namespace, "released", &Change::new().release())?;
    Ok(seeds)
}
