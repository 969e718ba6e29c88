//! A ring of records in shared memory, with one writer and one reader that do not trust each other.
//!
//! Positions count bytes since the beginning. A record is a header of four words and a payload; it
//! is never split: where it would not fit before the end of the ring, a pad fills that. Each side
//! keeps its own position and publishes copies of it, so that the peer can only mislead itself.
#![expect(unsafe_code, reason = "reaches shared memory by address")]

use core::sync::atomic::{AtomicU64, Ordering};

use super::news_count::NewsCount;
use super::shared_word::SharedWord;

/// Bytes of one ring. Both ends copy through it concurrently, so it should stay in their caches,
/// and it exists four times per connection; half of it delays large messages, which wait for room
/// more often.
#[cfg(not(all(test, loom)))]
pub(super) const RING_BYTES: usize = 256 << 10;
/// So few that a model has an atomic for each word.
#[cfg(all(test, loom))]
pub(super) const RING_BYTES: usize = 1024;
const RING: u64 = RING_BYTES as u64;
/// Bytes of the words before each payload.
const HEADER_BYTES: usize = 32;
/// Records begin at multiples of this: a cache line.
const ALIGNMENT: u64 = 64;
/// The longest payload of one record: with its header an eighth of the ring, so that the ends work
/// on different parts of a large message concurrently.
pub(super) const MAX_PAYLOAD: u32 = (RING_BYTES / 8 - HEADER_BYTES) as u32;
/// Small records of a ring that is empty go to its beginning once this much of it was used, so that
/// of many connections with few requests each only that much is in use. Half of it leaves less room
/// for what follows, since the bytes up to the end count as taken until the reader has passed them.
const RESTART_BYTES: u64 = RING / 8;
/// Records up to this payload are small.
const RESTART_PAYLOAD: u32 = 8 << 10;
/// The kind of a record that has no content. The kind is in the first word, above the length.
const PAD: u64 = 0;

/// The memory of a ring.
pub(super) struct SharedRing<'a, W = AtomicU64> {
    /// How far the writer is.
    pub(super) head: &'a W,
    /// How far the reader is.
    pub(super) tail: &'a W,
    pub(super) news_of_writer: NewsCount<'a, W>,
    pub(super) news_of_reader: NewsCount<'a, W>,
    /// `RING_BYTES` bytes, aligned to a cache line.
    pub(super) data: *mut W,
}

/// The peer wrote something that no peer of ours would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingBroken;

/// The writer's own account of a ring.
#[derive(Default)]
pub(super) struct RingWriter {
    written: u64,
    published: u64,
    /// Position up to which the reader says that it has read.
    read: u64,
}

/// Room for the payload of a record that has not been committed.
pub(super) struct RecordSpace {
    payload: *mut u8,
    length: u32,
}

/// The reader's own account of a ring.
#[derive(Default)]
pub(super) struct RingReader {
    read: u64,
    published: u64,
    /// Position up to which the writer says that it has written.
    written: u64,
}

/// A record in the ring. The header is a copy, the payload is not: the peer may change it.
pub(super) struct RingRecord {
    /// The header; the payload's length is in the lower half of the first word.
    pub(super) words: [u64; 4],
    pub(super) payload: *const u8,
    size: u64,
}

impl<W: SharedWord> SharedRing<'_, W> {
    /// The word at a position where a record may begin.
    fn word(&self, position: u64) -> *mut W {
        debug_assert!(position.is_multiple_of(ALIGNMENT));
        let offset = usize::try_from(position % RING).expect("a ring is small");
        // SAFETY: within the ring.
        unsafe { self.data.add(offset / size_of::<u64>()) }
    }

    /// The words of the header at a position.
    fn header(&self, position: u64) -> &[W; 4] {
        // SAFETY: where a record may begin there is room for a header before the end of the ring.
        // Shared memory is valid for atomics of whatever value while it is mapped, as long as
        // `self` is.
        unsafe { &*self.word(position).cast::<[W; 4]>() }
    }

    /// The payload of the record at a position.
    fn payload(&self, position: u64) -> *mut u8 {
        // SAFETY: the header is within the ring, and the payload begins at its end.
        unsafe { self.word(position).cast::<u8>().add(HEADER_BYTES) }
    }

    pub(super) fn write_header(&self, position: u64, words: [u64; 4]) {
        for (place, word) in self.header(position).iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }
}

impl RingRecord {
    /// Bytes of its payload.
    pub(super) fn length(&self) -> u32 {
        u32::try_from(self.words[0] & u64::from(u32::MAX)).expect("the lower half")
    }
}

impl RecordSpace {
    /// Where `length` bytes of payload go.
    pub(super) fn payload(&self) -> *mut u8 {
        self.payload
    }

    /// Bytes of its payload.
    pub(super) fn length(&self) -> u32 {
        self.length
    }
}

impl RingWriter {
    /// The position after the latest record.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// How far the reader was when [`RingWriter::refresh`] asked.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Asks how far the reader is; returns whether it is further than before.
    pub(super) fn refresh(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
    ) -> Result<bool, RingBroken> {
        let read = ring.tail.load(Ordering::Acquire);
        if read < self.read || read > self.published {
            return Err(RingBroken);
        }
        Ok(core::mem::replace(&mut self.read, read) != read)
    }

    /// Whether the reader is further than it was when asked, or than it can be.
    pub(super) fn has_news(&self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        ring.tail.load(Ordering::Relaxed) != self.read
    }

    /// Room for a record with `length` bytes of payload; `None` until the reader has read more.
    pub(super) fn space(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
        length: u32,
    ) -> Option<RecordSpace> {
        debug_assert!(length <= MAX_PAYLOAD);
        let size = size_of_record(length);
        let used = self.written % RING;
        let before_end = RING - used;
        let restarts =
            self.written == self.read && used >= RESTART_BYTES && length <= RESTART_PAYLOAD;
        let pad = if size > before_end || restarts { before_end } else { 0 };
        if self.written + pad + size - self.read > RING {
            return None;
        }
        if pad > 0 {
            let length = pad - HEADER_BYTES as u64;
            ring.write_header(self.written, [PAD << 32 | length, 0, 0, 0]);
            self.written += pad;
        }
        Some(RecordSpace { payload: ring.payload(self.written), length })
    }

    /// Makes a record of a space whose payload was written.
    pub(super) fn commit(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
        space: &RecordSpace,
        words: [u64; 4],
    ) {
        ring.write_header(self.written, words);
        self.written += size_of_record(space.length);
    }

    /// Shows the reader all records; returns whether there are new ones.
    pub(super) fn publish(&mut self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        let news = self.published != self.written;
        if news {
            self.published = self.written;
            ring.head.store(self.written, Ordering::Release);
            ring.news_of_writer.count();
        }
        news
    }
}

impl RingReader {
    /// Asks how far the writer is.
    pub(super) fn refresh(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
    ) -> Result<(), RingBroken> {
        let written = ring.head.load(Ordering::Acquire);
        let sane = written >= self.written
            && written - self.read <= RING
            && written.is_multiple_of(ALIGNMENT);
        self.written = if sane { written } else { return Err(RingBroken) };
        Ok(())
    }

    /// Whether the writer is further than it was when asked, or than it can be.
    pub(super) fn has_news(&self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        ring.head.load(Ordering::Relaxed) != self.written
    }

    /// How far this side has read.
    pub(super) fn position(&self) -> u64 {
        self.read
    }

    /// The next record, which stays the next until [`RingReader::finish`].
    pub(super) fn next(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
    ) -> Result<Option<RingRecord>, RingBroken> {
        while self.read < self.written {
            let mut words = [0; 4];
            for (word, place) in words.iter_mut().zip(ring.header(self.read)) {
                *word = place.load(Ordering::Relaxed);
            }
            let length = words[0] & u64::from(u32::MAX);
            let size = (HEADER_BYTES as u64 + length).next_multiple_of(ALIGNMENT);
            if size > self.written - self.read || size > RING - self.read % RING {
                return Err(RingBroken);
            }
            if (words[0] >> 32) & 0xFF != PAD {
                let payload = ring.payload(self.read);
                return Ok(Some(RingRecord { words, payload, size }));
            }
            self.read += size;
        }
        Ok(None)
    }

    /// Moves on to the record after this one.
    pub(super) fn finish(&mut self, record: &RingRecord) {
        self.read += record.size;
    }

    /// Gives the writer the room of all records that are finished; returns whether there are new
    /// ones.
    pub(super) fn publish(&mut self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        let news = self.published != self.read;
        if news {
            self.published = self.read;
            ring.tail.store(self.read, Ordering::Release);
            ring.news_of_reader.count();
        }
        news
    }

    /// Bytes that are finished and whose room the writer does not have back.
    pub(super) fn unpublished(&self) -> u64 {
        self.read - self.published
    }
}

fn size_of_record(length: u32) -> u64 {
    (HEADER_BYTES as u64 + u64::from(length)).next_multiple_of(ALIGNMENT)
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
mod tests;
