//! Contents of checkpoints that tests save and compare.

use std::fs;
use std::io;
use std::path::Path;

use crate::process::Bytes;

/// Most entries of a checkpoint.
const ENTRIES_MOST: u64 = 4;
/// Length that no entry reaches, in bytes.
const ENTRY_BYTES: u64 = 3 << 20;

/// Entries of a checkpoint by their names: one to four, of odd lengths or empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointContent {
    /// Names and bytes, sorted by name.
    pub entries: Vec<(String, Vec<u8>)>,
}

impl CheckpointContent {
    /// Returns the content that belongs to a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Bytes::new(seed);
        let count = 1 + random.below(ENTRIES_MOST);
        let entry = |rank| {
            let length = if random.below(6) == 0 { 0 } else { random.below(ENTRY_BYTES) };
            (format!("rank{rank}/model"), random.take(length as usize))
        };
        Self { entries: (0..count).map(entry).collect() }
    }

    /// Writes each entry to a file of a folder.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_to(&self, folder: &Path) -> io::Result<()> {
        for (name, bytes) in &self.entries {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, bytes)?;
        }
        Ok(())
    }
}
