//! Files that grow side by side, each committed when it is closed.

use feedrail_checkpoint::{Change, CheckpointName, EntryName, Error, Save, Volume};

use super::device::Ended;
use super::model::{self, Refusal, random_checkpoint, random_file};
use super::world::{UNIT_SHIFT, World};

const UNIT: usize = 1 << UNIT_SHIFT;
/// Files that are open together, at most.
const FILES: u64 = 3;
/// Units of a file, at most.
const UNITS: usize = 4;

/// File that is not closed.
struct OpenFile {
    place: (String, &'static str),
    save: Save,
    entry: usize,
    bytes: Vec<u8>,
}

/// How a write ends.
enum Appended {
    Well,
    Failed,
    PowerLost,
}

impl World {
    /// Opens files, appends to them in turns, and closes or aborts them. Returns false if the
    /// session must end.
    pub(super) fn files(&mut self, volume: &mut Volume) -> bool {
        let count = 1 + self.device.random.below(FILES);
        let mut files: Vec<_> = (0..count).map(|_| self.open_file(volume)).collect();
        for _ in 0..self.device.random.index(UNITS) * files.len() {
            // Open files stop no other change, and no deletion for lack of space.
            if self.device.random.chance(100_000) {
                let is_made = match self.device.random.chance(500_000) {
                    true => self.change_names(volume),
                    false => self.delete(volume),
                };
                if !is_made {
                    return false;
                }
            }
            let index = self.device.random.index(files.len().max(1));
            let Some(file) = files.get_mut(index) else { break };
            match self.append(volume, file, UNIT) {
                Appended::Well => {}
                Appended::Failed => {
                    volume.abort(files.swap_remove(index).save);
                    self.tally.refusals += 1;
                }
                Appended::PowerLost => return false,
            }
        }
        while let Some(file) = files.pop() {
            if !self.close_file(volume, file) {
                return false;
            }
        }
        self.check_space(volume);
        true
    }

    fn open_file(&mut self, volume: &mut Volume) -> OpenFile {
        let checkpoint = random_checkpoint(&mut self.device.random, &self.contents);
        let name = random_file(&mut self.device.random);
        let of_checkpoint = CheckpointName::new(&checkpoint).unwrap();
        let mut save = volume.begin_entries(of_checkpoint, self.now_ms).unwrap();
        let entry = volume.add_entry(&mut save, EntryName::new(name).unwrap(), 0).unwrap();
        OpenFile { place: (checkpoint, name), save, entry, bytes: Vec::new() }
    }

    fn append(&mut self, volume: &mut Volume, file: &mut OpenFile, length: usize) -> Appended {
        let random = &mut self.device.random;
        let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        match volume.extend_entry(&mut file.save, file.entry, length as u64) {
            Ok(()) => {}
            Err(Error::CapacityExceeded { .. }) => return Appended::Failed,
            Err(error) => panic!("{error}"),
        }
        let offset = file.bytes.len() as u64;
        let writing = volume.write(&mut file.save, file.entry, offset, &bytes, self.now_ms);
        let ended = self.device.drive(writing.unwrap(), &bytes);
        file.bytes.extend(&bytes);
        match ended {
            Ended::Well(Ok(())) => Appended::Well,
            Ended::Well(Err(_)) => Appended::Failed,
            Ended::PowerLost => {
                self.tally.power_cuts += 1;
                Appended::PowerLost
            }
        }
    }

    /// Fills the volume with a file. A deletion succeeds while it is open, and after its end.
    pub(super) fn fill(&mut self) {
        let mut volume = self.reopen();
        if !self.claim(&mut volume) {
            return;
        }
        let mut file = self.open_file(&mut volume);
        while matches!(self.append(&mut volume, &mut file, UNIT), Appended::Well) {}
        self.tally.refusals += 1;
        assert!(self.delete(&mut volume));
        if self.device.random.chance(500_000) {
            assert!(self.commit_file(&mut volume, file));
        } else {
            volume.abort(file.save);
        }
        self.check_space(&volume);
        assert!(self.delete(&mut volume));
        self.end_leases();
    }

    /// Writes the last bytes and commits, or aborts. Returns false if the session must end.
    fn close_file(&mut self, volume: &mut Volume, mut file: OpenFile) -> bool {
        let last = self.device.random.index(UNIT);
        match self.append(volume, &mut file, last) {
            Appended::Well if self.device.random.chance(850_000) => {}
            Appended::Well | Appended::Failed => {
                volume.abort(file.save);
                return true;
            }
            Appended::PowerLost => return false,
        }
        self.commit_file(volume, file)
    }

    fn commit_file(&mut self, volume: &mut Volume, file: OpenFile) -> bool {
        let place = (file.place.0.as_str(), file.place.1);
        let change = Change::new().commit(&file.save);
        match model::with_file(&self.contents, place, file.bytes) {
            Ok(after) => match self.publish(volume, &change, after) {
                Some(true) => self.tally.files += 1,
                Some(false) => volume.abort(file.save),
                None => return false,
            },
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Exists);
                let refused = volume.publish(&change, self.now_ms).map(drop);
                assert!(matches!(refused, Err(Error::Exists(_))), "{refused:?}");
                volume.abort(file.save);
            }
        }
        true
    }
}
