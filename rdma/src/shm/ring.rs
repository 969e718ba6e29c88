//! A ring of records in shared memory, with one writer and one reader that do not trust each other.
//!
//! Positions count bytes since the ring was created. A record is a header of four words and a
//! payload; it is contiguous: if it does not fit before the end of the ring, a pad record fills the
//! rest. Each side keeps its own position in private memory and publishes copies of it, so that a
//! peer that writes to these copies harms only itself.
#![expect(unsafe_code, reason = "reaches shared memory by address")]

use core::sync::atomic::{AtomicU64, Ordering};

use super::news_count::NewsCount;
use super::shared_word::SharedWord;

/// Size of a ring in bytes, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingSize(u64);

#[cfg(not(all(test, loom)))]
impl RingSize {
    /// Size of a ring of requests, with the data of reads. It has room for several of 128 KiB, so
    /// that the writer continues while the reader copies: with 512 KiB, reads of 128 KiB at depth
    /// 32 are 12 % slower.
    pub(super) const REQUESTS: Self = Self(1 << 20);
    /// Size of a ring of answers, with the data of writes. Both ends copy through it at the same
    /// time, so it should stay in their caches: with 1 MiB, writes of 128 KiB are 8 % slower.
    pub(super) const ANSWERS: Self = Self(256 << 10);
}

/// Small enough for a model with one atomic per word.
#[cfg(all(test, loom))]
impl RingSize {
    pub(super) const REQUESTS: Self = Self(1024);
    pub(super) const ANSWERS: Self = Self::REQUESTS;
}

impl RingSize {
    pub(super) const fn bytes(self) -> u64 {
        self.0
    }

    /// Bytes from the beginning of the ring to a position.
    const fn offset(self, position: u64) -> u64 {
        position & (self.0 - 1)
    }
}

/// Size of a record's header.
const HEADER_BYTES: usize = 32;
/// Alignment of records in bytes: a cache line.
const ALIGNMENT: u64 = 64;
/// Maximum payload of one record, a small part of the ring, so that both ends work on a large
/// message at the same time; whole pages, since files are read into records.
#[cfg(not(all(test, loom)))]
pub(super) const MAX_PAYLOAD: u32 = 32 << 10;
#[cfg(all(test, loom))]
pub(super) const MAX_PAYLOAD: u32 = RingSize::REQUESTS.0 as u32 / 8 - HEADER_BYTES as u32;
/// When the ring is empty and at least this much of it was used, the next small record goes to its
/// beginning, so that connections with few requests touch only this part. A value half as large
/// leaves less room for later records, since the skipped bytes count as used until the reader has
/// passed them.
#[cfg(not(all(test, loom)))]
const RESTART_BYTES: u64 = 32 << 10;
#[cfg(all(test, loom))]
const RESTART_BYTES: u64 = RingSize::REQUESTS.0 / 8;
/// Maximum payload of a small record.
const RESTART_PAYLOAD: u32 = 8 << 10;
/// Kind of a record without content. The kind is in bits 32 to 39 of the first word, above the
/// length.
const PAD: u64 = 0;

pub(super) struct SharedRing<'a, W = AtomicU64> {
    /// Position of the writer, as published.
    pub(super) head: &'a W,
    /// Position of the reader, as published.
    pub(super) tail: &'a W,
    pub(super) news_of_writer: NewsCount<'a, W>,
    pub(super) news_of_reader: NewsCount<'a, W>,
    pub(super) size: RingSize,
    /// The bytes of the ring, aligned to a cache line.
    pub(super) data: *mut W,
}

/// Error: the peer published a position or a record that is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingBroken;

/// The writer's private state of a ring.
#[derive(Default)]
pub(super) struct RingWriter {
    written: u64,
    published: u64,
    /// The reader's position, as last read from shared memory.
    read: u64,
}

/// Room for the payload of a record that is not committed yet.
pub(super) struct RecordSpace {
    pub(super) payload: *mut u8,
    pub(super) length: u32,
}

/// The reader's private state of a ring.
#[derive(Default)]
pub(super) struct RingReader {
    read: u64,
    published: u64,
    /// The writer's position, as last read from shared memory.
    written: u64,
}

/// A record in the ring. The header is a copy; the payload is in the ring, where the peer may
/// change it.
pub(super) struct RingRecord {
    /// The header; the lower half of the first word is the payload's length.
    pub(super) words: [u64; 4],
    pub(super) payload: *const u8,
    size: u64,
}

impl<W: SharedWord> SharedRing<'_, W> {
    /// The word at a position that is a multiple of `ALIGNMENT`.
    fn word(&self, position: u64) -> *mut W {
        debug_assert!(position.is_multiple_of(ALIGNMENT));
        let offset = usize::try_from(self.size.offset(position)).expect("a ring is small");
        // SAFETY: within the ring.
        unsafe { self.data.add(offset / size_of::<u64>()) }
    }

    fn header(&self, position: u64) -> &[W; 4] {
        // SAFETY: where a record may begin there is room for a header before the end of the ring.
        // Shared memory is valid for atomics of whatever value while it is mapped, as long as
        // `self` is.
        unsafe { &*self.word(position).cast::<[W; 4]>() }
    }

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
    /// Length of the payload in bytes.
    pub(super) fn length(&self) -> u32 {
        u32::try_from(self.words[0] & u64::from(u32::MAX)).expect("the lower half")
    }
}

impl RecordSpace {
    pub(super) fn payload(&self) -> *mut u8 {
        self.payload
    }

    /// Length of the payload in bytes.
    pub(super) fn length(&self) -> u32 {
        self.length
    }
}

impl RingWriter {
    /// Position after the latest record.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// The reader's position, as of the last [`RingWriter::refresh`].
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Reads the reader's position; returns whether it has advanced.
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

    /// Whether the published position of the reader differs from the one last read.
    pub(super) fn has_news(&self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        ring.tail.load(Ordering::Relaxed) != self.read
    }

    /// Whether `total` bytes of payload fit in records of at most [`MAX_PAYLOAD`], wherever the
    /// first begins.
    pub(super) fn has_room(&self, ring: &SharedRing<'_, impl SharedWord>, total: u32) -> bool {
        let records = u64::from(total.div_ceil(MAX_PAYLOAD));
        // Each record but the last is of the largest size, and one pad is shorter than that.
        let most = (records + 1) * size_of_record(total.min(MAX_PAYLOAD));
        most <= ring.size.bytes() - (self.written - self.read)
    }

    /// Reserves a record with `length` bytes of payload; `None` until the reader has freed enough.
    pub(super) fn space(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
        length: u32,
    ) -> Option<RecordSpace> {
        debug_assert!(length <= MAX_PAYLOAD);
        let size = size_of_record(length);
        let used = ring.size.offset(self.written);
        let before_end = ring.size.bytes() - used;
        let restarts =
            self.written == self.read && used >= RESTART_BYTES && length <= RESTART_PAYLOAD;
        let pad = if size > before_end || restarts { before_end } else { 0 };
        if self.written + pad + size - self.read > ring.size.bytes() {
            return None;
        }
        if pad > 0 {
            let length = pad - HEADER_BYTES as u64;
            ring.write_header(self.written, [PAD << 32 | length, 0, 0, 0]);
            self.written += pad;
        }
        Some(RecordSpace { payload: ring.payload(self.written), length })
    }

    /// Whether the next record begins at `position` and has its payload at `payload`.
    pub(super) fn is_next(
        &self,
        ring: &SharedRing<'_, impl SharedWord>,
        payload: *const u8,
        position: u64,
    ) -> bool {
        self.written == position && core::ptr::eq(ring.payload(position), payload)
    }

    /// Writes the header of a reserved record whose payload was written.
    pub(super) fn commit(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
        space: &RecordSpace,
        words: [u64; 4],
    ) {
        ring.write_header(self.written, words);
        self.written += size_of_record(space.length);
    }

    /// Number of bytes of committed records that are not published.
    pub(super) fn unpublished(&self) -> u64 {
        self.written - self.published
    }

    /// Publishes all committed records; returns whether there are new ones.
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
    /// Reads the writer's position.
    pub(super) fn refresh(
        &mut self,
        ring: &SharedRing<'_, impl SharedWord>,
    ) -> Result<(), RingBroken> {
        let written = ring.head.load(Ordering::Acquire);
        let sane = written >= self.written
            && written - self.read <= ring.size.bytes()
            && written.is_multiple_of(ALIGNMENT);
        self.written = if sane { written } else { return Err(RingBroken) };
        Ok(())
    }

    /// Whether the published position of the writer differs from the one last read.
    pub(super) fn has_news(&self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        ring.head.load(Ordering::Relaxed) != self.written
    }

    /// The reader's own position.
    pub(super) fn position(&self) -> u64 {
        self.read
    }

    /// Returns the next record; it stays the next until [`RingReader::finish`].
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
            let before_end = ring.size.bytes() - ring.size.offset(self.read);
            if size > self.written - self.read || size > before_end {
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

    /// Advances past a record.
    pub(super) fn finish(&mut self, record: &RingRecord) {
        self.read += record.size;
    }

    /// Publishes the reader's position, so that the writer may reuse the space; returns whether it
    /// has advanced.
    pub(super) fn publish(&mut self, ring: &SharedRing<'_, impl SharedWord>) -> bool {
        let news = self.published != self.read;
        if news {
            self.published = self.read;
            ring.tail.store(self.read, Ordering::Release);
            ring.news_of_reader.count();
        }
        news
    }

    /// Number of bytes that are read and not yet given back to the writer.
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
