//! The values that every byte of a namespace may have, given the commands of hosts and their
//! responses.
//!
//! - A read finds the bytes of each write whose end was reported well, until the power goes.
//! - A flush makes durable each write that had ended well before the flush began; a durable write
//!   is durable when it ends well. Durable bytes survive the loss of power.
//! - A write that failed, that was never answered, or that the power took, may be there or not,
//!   until a later write of the same bytes ends well: from then on it must not come back.
//!
//! Writes that are in flight at the same time must not overlap.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::medium::SECTOR_BYTES;

/// A point in the order of events.
type Moment = u64;

/// A write, by its place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteId(u64);

/// A read, by its place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadId(u64);

/// A flush, by the moment when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlushId(Moment);

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteEnd {
    /// Well, and it is durable.
    Durable,
    /// Well; a crash may still undo it.
    Volatile,
    /// No response came: all, some or none of it may be done.
    Unknown,
}

/// A read that found impossible bytes.
#[derive(Debug)]
pub(super) struct Wrong(String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// All that happened to the bytes of a namespace.
pub(super) struct History {
    now: Moment,
    /// Stretches of bytes with the same past, by their first byte. They cover the namespace without
    /// gaps.
    stretches: BTreeMap<usize, Stretch>,
    length: usize,
    next_write: u64,
    /// When the power was last lost.
    power_lost: Moment,
    /// Reads in flight and when they began.
    reads: BTreeMap<u64, Moment>,
}

/// Bytes that were always written together.
#[derive(Clone)]
struct Stretch {
    /// Versions in the order in which they began.
    versions: Vec<Version>,
    /// The latest version that is known to be durable: an index.
    durable: usize,
}

/// A write, as one stretch sees it.
#[derive(Clone)]
struct Version {
    write: WriteId,
    began: Moment,
    contents: Rc<Contents>,
    /// When it ended well, unless the power may have taken it since.
    ended: Option<Moment>,
    /// When a later write of these bytes ended well: nothing that begins later finds this one.
    superseded: Option<Moment>,
}

struct Contents {
    offset: usize,
    bytes: Vec<u8>,
}

impl Contents {
    fn part(&self, from: usize, to: usize) -> &[u8] {
        &self.bytes[from - self.offset..to - self.offset]
    }
}

impl History {
    /// A namespace that holds these bytes durably.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        let contents = Rc::new(Contents { offset: 0, bytes });
        let first =
            Version { write: WriteId(0), began: 0, contents, ended: Some(0), superseded: None };
        let stretch = Stretch { versions: vec![first], durable: 0 };
        let stretches = BTreeMap::from([(0, stretch)]);
        Self { now: 0, stretches, length, next_write: 0, power_lost: 0, reads: BTreeMap::new() }
    }

    /// A write is handed over.
    pub(super) fn begin_write(&mut self, offset: usize, bytes: Vec<u8>) -> WriteId {
        self.now += 1;
        self.next_write += 1;
        let write = WriteId(self.next_write);
        let end = offset + bytes.len();
        self.split(offset);
        self.split(end);
        let (began, contents) = (self.now, Rc::new(Contents { offset, bytes }));
        let version = Version { write, began, contents, ended: None, superseded: None };
        for stretch in self.within(offset, end) {
            stretch.versions.push(version.clone());
        }
        write
    }

    /// The end of a write of `length` bytes at `offset` was reported.
    pub(super) fn end_write(
        &mut self,
        write: WriteId,
        offset: usize,
        length: usize,
        how: WriteEnd,
    ) {
        self.now += 1;
        let now = self.now;
        let oldest_read = self.reads.values().min().copied().unwrap_or(now);
        if how == WriteEnd::Unknown {
            return;
        }
        let power_lost = self.power_lost;
        for stretch in self.within(offset, offset + length) {
            stretch.end(write, now, how == WriteEnd::Durable, power_lost);
            stretch.prune(oldest_read);
        }
    }

    /// A read is handed over.
    pub(super) fn begin_read(&mut self) -> ReadId {
        self.now += 1;
        self.reads.insert(self.now, self.now);
        ReadId(self.now)
    }

    /// A read found `bytes` at `offset`.
    ///
    /// # Errors
    /// They cannot have been there at any time since the read began.
    pub(super) fn end_read(
        &mut self,
        read: ReadId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Wrong> {
        self.judge(read, offset, bytes, Stretch::check)
    }

    /// A comparison said that `bytes` differ from those at `offset`.
    ///
    /// # Errors
    /// They were there all the time since it began.
    pub(super) fn end_difference(
        &mut self,
        read: ReadId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Wrong> {
        let mut certain = true;
        self.judge(read, offset, bytes, |stretch, began, from, expected| {
            certain &= stretch.is_certain(began, from, expected);
            Ok(())
        })?;
        if certain { Err(Wrong("nothing differs".into())) } else { Ok(()) }
    }

    /// Ends a read, after `judge` has seen each sector's part of each stretch: when the read began,
    /// where the part begins, and its bytes.
    fn judge(
        &mut self,
        read: ReadId,
        offset: usize,
        bytes: &[u8],
        mut judge: impl FnMut(&Stretch, Moment, usize, &[u8]) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let began = self.reads.remove(&read.0).expect("a read ends once");
        for (start, stop, stretch) in self.parts(offset, offset + bytes.len()) {
            let mut from = start;
            while from < stop {
                // Sectors are written one by one.
                let to = (from + 1).next_multiple_of(SECTOR_BYTES).min(stop);
                judge(stretch, began, from, &bytes[from - offset..to - offset])?;
                from = to;
            }
        }
        Ok(())
    }

    /// The bytes last written between two offsets, whether or not that write succeeded.
    pub(super) fn latest(&self, offset: usize, end: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(end - offset);
        for (from, to, stretch) in self.parts(offset, end) {
            let latest = stretch.versions.last().expect("there is always one");
            bytes.extend_from_slice(latest.contents.part(from, to));
        }
        bytes
    }

    /// The stretches between two offsets, and which part of each is.
    fn parts(&self, offset: usize, end: usize) -> impl Iterator<Item = (usize, usize, &Stretch)> {
        let first = self.stretches.range(..=offset).next_back().map_or(0, |(&start, _)| start);
        let mut stops = self.stretches.range(first..).skip(1).map(|(&start, _)| start);
        self.stretches.range(first..end).map(move |(&start, stretch)| {
            let stop = stops.next().unwrap_or(self.length);
            (start.max(offset), stop.min(end), stretch)
        })
    }

    /// A read failed, or was never answered.
    pub(super) fn abandon_read(&mut self, read: ReadId) {
        self.reads.remove(&read.0);
    }

    /// A flush is handed over.
    pub(super) fn begin_flush(&mut self) -> FlushId {
        self.now += 1;
        FlushId(self.now)
    }

    /// A flush ended well.
    pub(super) fn end_flush(&mut self, FlushId(began): FlushId) {
        for stretch in self.stretches.values_mut() {
            let flushed = |version: &Version| version.ended.is_some_and(|ended| ended < began);
            if let Some(latest) = stretch.versions.iter().rposition(flushed) {
                stretch.durable = stretch.durable.max(latest);
            }
        }
    }

    /// The power went: bytes that are not known to be durable may be gone.
    pub(super) fn lose_power(&mut self) {
        self.now += 1;
        self.power_lost = self.now;
        for stretch in self.stretches.values_mut() {
            let durable = stretch.durable;
            for version in &mut stretch.versions[durable..] {
                version.superseded = None;
            }
            for version in &mut stretch.versions[durable + 1..] {
                version.ended = None;
            }
        }
    }

    /// Makes a stretch begin at `at`.
    fn split(&mut self, at: usize) {
        assert!(at <= self.length, "within the namespace");
        let (&start, stretch) = self.stretches.range(..=at).next_back().expect("one begins at 0");
        if start < at && at < self.length {
            let rest = stretch.clone();
            self.stretches.insert(at, rest);
        }
    }

    fn within(&mut self, from: usize, to: usize) -> impl Iterator<Item = &mut Stretch> {
        self.stretches.range_mut(from..to).map(|(_, stretch)| stretch)
    }
}

impl Stretch {
    fn end(&mut self, write: WriteId, now: Moment, durable: bool, power_lost: Moment) {
        let at = self.versions.iter().position(|version| version.write == write);
        let at = at.expect("a write is known until it ended");
        if self.versions[at].began < power_lost && !durable {
            // It may have ended before the power went, and only the news of it came later.
            return;
        }
        self.versions[at].ended = Some(now);
        for earlier in &mut self.versions[..at] {
            earlier.superseded.get_or_insert(now);
        }
        if durable {
            self.durable = self.durable.max(at);
        }
    }

    /// Drops versions that no read can find.
    fn prune(&mut self, oldest_read: Moment) {
        let findable = |version: &Version| {
            version.superseded.is_none_or(|superseded| superseded > oldest_read)
        };
        let durable = self.durable;
        let gone = self.versions[..durable].iter().take_while(|version| !findable(version)).count();
        self.versions.drain(..gone);
        self.durable -= gone;
    }

    /// Whether a read that began at `began` can find nothing but these bytes.
    fn is_certain(&self, began: Moment, from: usize, bytes: &[u8]) -> bool {
        self.possible(began, from, bytes.len()).all(|possible| possible == bytes)
    }

    /// The values that a read that began at `began` may find.
    fn possible(
        &self,
        began: Moment,
        from: usize,
        length: usize,
    ) -> impl Iterator<Item = &[u8]> + Clone {
        self.versions
            .iter()
            .filter(move |version| version.superseded.is_none_or(|superseded| superseded > began))
            .map(move |version| version.contents.part(from, from + length))
    }

    /// Whether a read that began at `began` may find these bytes.
    fn check(&self, began: Moment, from: usize, found: &[u8]) -> Result<(), Wrong> {
        let mut possible = self.possible(began, from, found.len());
        if possible.clone().any(|bytes| bytes == found) {
            return Ok(());
        }
        let gone = self.versions.iter().any(|version| {
            version.superseded.is_some() && version.contents.part(from, from + found.len()) == found
        });
        let about = if gone { "an older write's" } else { "no write's" };
        let show = |bytes: &[u8]| format!("{:02x?}", &bytes[..bytes.len().min(8)]);
        let wanted: Vec<String> = possible.by_ref().map(show).collect();
        Err(Wrong(format!(
            "{} bytes at {from} are {about}: {} where {} may be",
            found.len(),
            show(found),
            wanted.join(" or ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 2048;

    fn history() -> History {
        History::new(vec![0; LENGTH])
    }

    fn write(history: &mut History, offset: usize, length: usize, byte: u8, how: WriteEnd) {
        let id = history.begin_write(offset, vec![byte; length]);
        history.end_write(id, offset, length, how);
    }

    fn finds(history: &mut History, offset: usize, bytes: &[u8]) -> bool {
        let read = history.begin_read();
        history.end_read(read, offset, bytes).is_ok()
    }

    /// Which of 0, 1, 2, 3 byte 100 may be.
    fn possible(history: &mut History) -> Vec<u8> {
        (0..4).filter(|&byte| finds(history, 100, &[byte])).collect()
    }

    fn differs(history: &mut History, offset: usize, bytes: &[u8]) -> bool {
        let read = history.begin_read();
        history.end_difference(read, offset, bytes).is_ok()
    }

    #[test]
    fn a_compare_may_fail_after_an_unknown_write() {
        let mut history = history();
        write(&mut history, 100, 10, 1, WriteEnd::Volatile);
        assert_eq!(history.latest(99, 102), [0, 1, 1]);
        assert!(!differs(&mut history, 99, &[0, 1, 1]));
        assert!(differs(&mut history, 99, &[0, 1, 0]));
        write(&mut history, 101, 1, 1, WriteEnd::Unknown);
        assert!(!differs(&mut history, 99, &[0, 1, 1]), "it is the same before and after");
        write(&mut history, 101, 1, 2, WriteEnd::Unknown);
        assert!(differs(&mut history, 99, &[0, 1, 1]));
    }

    #[test]
    fn reads_find_written_bytes_only() {
        let mut history = history();
        write(&mut history, 100, 10, 1, WriteEnd::Volatile);
        assert_eq!(possible(&mut history), [1]);
        assert!(finds(&mut history, 99, &[0, 1, 1]));
        assert!(finds(&mut history, 109, &[1, 0]));
        assert!(!finds(&mut history, 109, &[1, 1]));
    }

    #[test]
    fn an_unanswered_write_is_old_or_new_until_overwritten() {
        let mut history = history();
        write(&mut history, 0, 1024, 1, WriteEnd::Unknown);
        assert_eq!(possible(&mut history), [0, 1]);
        write(&mut history, 50, 100, 2, WriteEnd::Volatile);
        assert_eq!(possible(&mut history), [2]);
        let torn = [[1; 512], [0; 512]].concat();
        assert!(finds(&mut history, 512, &[1; 512]));
        assert!(!finds(&mut history, 0, &torn), "the middle was overwritten");
        write(&mut history, 0, 1024, 3, WriteEnd::Unknown);
        assert!(finds(&mut history, 512, &[0; 512]));
    }

    #[test]
    fn an_unanswered_write_tears_between_sectors_only() {
        let mut history = history();
        write(&mut history, 0, 1024, 1, WriteEnd::Unknown);
        assert!(finds(&mut history, 0, &[[1; 512], [0; 512]].concat()));
        assert!(!finds(&mut history, 0, &[[1; 256], [0; 256]].concat()));
    }

    #[test]
    fn a_read_finds_any_value_of_its_duration() {
        let mut history = history();
        let read = history.begin_read();
        let late = history.begin_read();
        write(&mut history, 100, 1, 1, WriteEnd::Durable);
        write(&mut history, 100, 1, 2, WriteEnd::Durable);
        assert!(history.end_read(read, 100, &[0]).is_ok());
        assert!(history.end_read(late, 100, &[1]).is_ok());
        assert_eq!(possible(&mut history), [2]);
        let id = history.begin_write(100, vec![3]);
        assert_eq!(possible(&mut history), [2, 3]);
        history.end_write(id, 100, 1, WriteEnd::Volatile);
        assert_eq!(possible(&mut history), [3]);
    }

    #[test]
    fn only_durable_writes_survive_power_loss() {
        let mut history = history();
        write(&mut history, 100, 1, 1, WriteEnd::Durable);
        history.lose_power();
        assert_eq!(possible(&mut history), [1]);
        write(&mut history, 100, 1, 2, WriteEnd::Volatile);
        write(&mut history, 100, 1, 3, WriteEnd::Volatile);
        assert_eq!(possible(&mut history), [3]);
        history.lose_power();
        assert_eq!(possible(&mut history), [1, 2, 3]);
        // Nothing tells which of them a flush makes durable.
        let flush = history.begin_flush();
        history.end_flush(flush);
        history.lose_power();
        assert_eq!(possible(&mut history), [1, 2, 3]);
    }

    #[test]
    fn a_flush_covers_writes_ended_before_it() {
        let mut history = history();
        write(&mut history, 100, 1, 1, WriteEnd::Volatile);
        let flush = history.begin_flush();
        write(&mut history, 100, 1, 2, WriteEnd::Volatile);
        history.end_flush(flush);
        history.lose_power();
        assert_eq!(possible(&mut history), [1, 2]);
    }

    #[test]
    fn a_write_may_end_after_it_was_overwritten() {
        let mut history = history();
        let id = history.begin_write(100, vec![1]);
        let durable = history.begin_write(200, vec![1]);
        history.lose_power();
        history.end_write(id, 100, 1, WriteEnd::Volatile);
        history.end_write(durable, 200, 1, WriteEnd::Durable);
        assert_eq!(possible(&mut history), [0, 1]);
        assert!(!finds(&mut history, 200, &[0]));
    }
}
