//! Rings in order, and rings whose other side lies.

use core::sync::atomic::Ordering::{Relaxed, Release};

use proptest::prelude::*;

use super::*;

const RING: u64 = RingSize::REQUESTS.bytes();

/// A ring in memory of this process.
struct OwnRing {
    head: AtomicU64,
    tail: AtomicU64,
    news: [AtomicU64; 2],
    size: RingSize,
    data: *mut AtomicU64,
}

/// Enough for a ring of any size.
const LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(RING as usize, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a valid layout"),
};

impl OwnRing {
    fn new() -> Self {
        Self::of(RingSize::REQUESTS)
    }

    fn of(size: RingSize) -> Self {
        assert!(size.bytes() as usize <= LAYOUT.size());
        // SAFETY: the layout is not empty.
        let data = unsafe { std::alloc::alloc_zeroed(LAYOUT) };
        let (data, word) = (data.cast(), || AtomicU64::new(0));
        Self { head: word(), tail: word(), news: Default::default(), size, data }
    }

    fn shared(&self) -> SharedRing<'_> {
        let [writer, reader] = &self.news;
        SharedRing {
            head: &self.head,
            tail: &self.tail,
            news_of_writer: NewsCount(writer),
            news_of_reader: NewsCount(reader),
            size: self.size,
            data: self.data,
        }
    }
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        // SAFETY: allocated in `of` with this layout.
        unsafe { std::alloc::dealloc(self.data.cast(), LAYOUT) };
    }
}

/// Writes a record of `length` bytes that are all `tag`; false if there is no room.
fn write(writer: &mut RingWriter, ring: &SharedRing<'_>, tag: u8, length: u32) -> bool {
    let Some(space) = writer.space(ring, length) else { return false };
    // SAFETY: the space is as long.
    unsafe { space.payload().write_bytes(tag, length as usize) };
    writer.commit(ring, &space, [1 << 32 | u64::from(length), tag.into(), 2, 3]);
    true
}

/// Reads a record: its tag and its bytes.
fn read(reader: &mut RingReader, ring: &SharedRing<'_>) -> Option<(u8, Vec<u8>)> {
    let record = reader.next(ring).expect("a ring in order")?;
    let mut bytes = vec![0; record.length() as usize];
    // SAFETY: the payload was found to lie in the ring.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(record.payload, bytes.len()) };
    reader.finish(&record);
    assert_eq!(record.words[2..], [2, 3]);
    Some((u8::try_from(record.words[1]).unwrap(), bytes))
}

fn sizes() -> impl Strategy<Value = RingSize> {
    prop::sample::select(vec![RingSize::REQUESTS, RingSize::ANSWERS])
}

proptest! {
    #[test]
    fn records_arrive_in_order_and_whole(
        size in sizes(),
        lengths in prop::collection::vec(0..=MAX_PAYLOAD, 1..200),
        batch in 1..20usize,
    ) {
        let own = OwnRing::of(size);
        let ring = own.shared();
        let (mut writer, mut reader) = (RingWriter::default(), RingReader::default());
        let (mut written, mut arrived) = (0, 0);
        while arrived < lengths.len() {
            writer.refresh(&ring).unwrap();
            for _ in 0..batch {
                let Some(&length) = lengths.get(written) else { break };
                if !write(&mut writer, &ring, written as u8, length) {
                    break;
                }
                written += 1;
            }
            writer.publish(&ring);
            reader.refresh(&ring).unwrap();
            while let Some((tag, bytes)) = read(&mut reader, &ring) {
                prop_assert_eq!(tag, arrived as u8);
                prop_assert_eq!(bytes, vec![tag; lengths[arrived] as usize]);
                arrived += 1;
            }
            reader.publish(&ring);
        }
        prop_assert_eq!(written, lengths.len());
    }

    /// Where the writer finds room for a number of bytes, it can write all of them in records.
    #[test]
    fn what_has_room_can_be_written(
        size in sizes(),
        before in prop::collection::vec(0..=MAX_PAYLOAD, 0..40),
        unread in 0..40usize,
        total in 1..=RING as u32,
    ) {
        let own = OwnRing::of(size);
        let ring = own.shared();
        let (mut writer, mut reader) = (RingWriter::default(), RingReader::default());
        for (index, &length) in before.iter().enumerate() {
            if !write(&mut writer, &ring, 1, length) {
                break;
            }
            writer.publish(&ring);
            if index + unread < before.len() {
                reader.refresh(&ring).unwrap();
                while read(&mut reader, &ring).is_some() {}
                reader.publish(&ring);
                writer.refresh(&ring).unwrap();
            }
        }
        if writer.has_room(&ring, total) {
            let mut left = total;
            while left > 0 {
                let length = left.min(MAX_PAYLOAD);
                prop_assert!(write(&mut writer, &ring, 2, length), "{left} of {total} are left");
                left -= length;
            }
        }
    }

    /// Whatever the peer writes into the words and the data, no access leaves the ring.
    #[test]
    fn a_writer_that_scribbles_is_noticed_or_bounded(
        size in sizes(),
        head in any::<u64>(),
        near in 0..=2 * RING,
        words in prop::collection::vec(any::<[u64; 4]>(), 1..8),
        offset in 0..RING / ALIGNMENT,
    ) {
        let own = OwnRing::of(size);
        let ring = own.shared();
        for (index, words) in words.into_iter().enumerate() {
            let place = (offset + index as u64 * 7) % (RING / ALIGNMENT) * ALIGNMENT;
            ring.write_header(place, words);
        }
        for head in [head, near, near - near % ALIGNMENT] {
            own.head.store(head, Relaxed);
            let mut reader = RingReader::default();
            let Ok(()) = reader.refresh(&ring) else { continue };
            let mut records = 0;
            while let Ok(Some(record)) = reader.next(&ring) {
                let start = record.payload as usize - own.data as usize;
                prop_assert!(start + record.length() as usize <= size.bytes() as usize);
                reader.finish(&record);
                records += 1;
                prop_assert!(records <= size.bytes() / ALIGNMENT);
            }
        }
    }
}

#[test]
fn a_reader_that_lies_is_noticed() {
    let own = OwnRing::new();
    let ring = own.shared();
    let mut writer = RingWriter::default();
    assert!(write(&mut writer, &ring, 1, 100));
    own.tail.store(192, Relaxed);
    assert_eq!(writer.refresh(&ring), Err(RingBroken), "it has not been published");
    writer.publish(&ring);
    assert_eq!(writer.refresh(&ring), Ok(true));
    own.tail.store(128, Relaxed);
    assert_eq!(writer.refresh(&ring), Err(RingBroken), "backwards");
    own.tail.store(u64::MAX, Relaxed);
    assert_eq!(writer.refresh(&ring), Err(RingBroken), "beyond");
}

#[test]
fn a_writer_that_lies_is_noticed() {
    let own = OwnRing::new();
    let ring = own.shared();
    for head in [1, 63, RING + 64, u64::MAX, u64::MAX - 63] {
        own.head.store(head, Release);
        assert_eq!(RingReader::default().refresh(&ring), Err(RingBroken), "{head}");
    }
    let mut reader = RingReader::default();
    own.head.store(128, Release);
    reader.refresh(&ring).unwrap();
    own.head.store(64, Release);
    assert_eq!(reader.refresh(&ring), Err(RingBroken), "backwards");
    // A record that is longer than what was written, and one that passes the end of the ring.
    for length in [200, RING, u64::from(u32::MAX)] {
        own.head.store(128, Release);
        ring.write_header(0, [1 << 32 | length, 0, 0, 0]);
        let mut reader = RingReader::default();
        reader.refresh(&ring).unwrap();
        assert!(reader.next(&ring).is_err(), "{length}");
    }
}

#[test]
fn a_full_ring_takes_no_more_until_it_was_read() {
    let own = OwnRing::new();
    let ring = own.shared();
    let (mut writer, mut reader) = (RingWriter::default(), RingReader::default());
    let mut count = 0;
    while write(&mut writer, &ring, 1, MAX_PAYLOAD) {
        count += 1;
    }
    assert_eq!(count, 31);
    // The rest at the end is shorter than a large record.
    while write(&mut writer, &ring, 1, 0) {}
    assert_eq!(writer.written(), RING);
    writer.publish(&ring);
    reader.refresh(&ring).unwrap();
    read(&mut reader, &ring).unwrap();
    assert!(reader.publish(&ring) && !reader.publish(&ring));
    writer.refresh(&ring).unwrap();
    assert!(write(&mut writer, &ring, 1, MAX_PAYLOAD));
    assert!(!write(&mut writer, &ring, 1, 0));
}

#[test]
fn few_small_records_use_a_small_part() {
    let own = OwnRing::new();
    let ring = own.shared();
    let (mut writer, mut reader) = (RingWriter::default(), RingReader::default());
    let mut ends = Vec::new();
    for tag in 0..200 {
        writer.refresh(&ring).unwrap();
        for length in [4096, 16] {
            assert!(write(&mut writer, &ring, tag, length));
        }
        writer.publish(&ring);
        ends.push(writer.written().wrapping_sub(1) % RING);
        reader.refresh(&ring).unwrap();
        for length in [4096, 16] {
            assert_eq!(read(&mut reader, &ring), Some((tag, vec![tag; length])));
        }
        reader.publish(&ring);
    }
    let most = ends.iter().max().expect("records were written");
    assert!(*most < RESTART_BYTES + 2 * 4096, "{most}");
    // One that is not small stays where it is.
    writer.refresh(&ring).unwrap();
    let at = writer.written() % RING;
    assert!(write(&mut writer, &ring, 0, RESTART_PAYLOAD + 1));
    assert!(writer.written() % RING > at);
}
