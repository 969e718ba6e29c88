//! Every order of what the two sides of a ring do: records arrive whole, also where the ring ends
//! and begins again, and no side sleeps that has something to do.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64 as ModelWord;
use loom::thread;

use super::*;
use crate::WakeFor;
use crate::shm::sleep_word::{PeerNews, SleepWord, publish_sleep};

const RING: u64 = RingSize::REQUESTS.bytes();
const WORDS: usize = RING as usize / size_of::<u64>();
/// Bytes of payload, with which a record takes two lines.
const LONG: u32 = 40;
const LINES: u64 = RING / ALIGNMENT;

/// A ring, the sleep words of its sides, and how often each was rung.
struct ModelRing {
    head: ModelWord,
    tail: ModelWord,
    writer_news: ModelWord,
    reader_news: ModelWord,
    data: Box<[ModelWord]>,
    reader_sleeps: ModelWord,
    writer_sleeps: ModelWord,
    rung_reader: ModelWord,
    rung_writer: ModelWord,
}

impl ModelRing {
    /// A ring in which both sides are at a position.
    fn at(position: u64) -> (Arc<Self>, RingWriter, RingReader) {
        let word = || ModelWord::new(0);
        let ring = Arc::new(Self {
            head: ModelWord::new(position),
            tail: ModelWord::new(position),
            writer_news: word(),
            reader_news: word(),
            data: (0..WORDS).map(|_| word()).collect(),
            reader_sleeps: word(),
            writer_sleeps: word(),
            rung_reader: word(),
            rung_writer: word(),
        });
        let writer = RingWriter { written: position, published: position, read: position };
        let reader = RingReader { read: position, published: position, written: position };
        (ring, writer, reader)
    }

    fn shared(&self) -> SharedRing<'_, ModelWord> {
        let data = self.data.as_ptr().cast_mut();
        SharedRing {
            head: &self.head,
            tail: &self.tail,
            news_of_writer: NewsCount(&self.writer_news),
            news_of_reader: NewsCount(&self.reader_news),
            size: RingSize::REQUESTS,
            data,
        }
    }

    fn payload_word(&self, position: u64) -> &ModelWord {
        let words = (position % RING) as usize / size_of::<u64>();
        &self.data[words + HEADER_BYTES / size_of::<u64>()]
    }
}

/// Writes a record whose words all say `tag`; false if there is no room.
fn write(writer: &mut RingWriter, model: &ModelRing, tag: u64, length: u32) -> bool {
    let ring = model.shared();
    let Some(space) = writer.space(&ring, length) else { return false };
    model.payload_word(writer.written()).store(tag, Ordering::Relaxed);
    writer.commit(&ring, &space, [1 << 32 | u64::from(length), tag, tag, tag]);
    true
}

/// Reads a record, whose words must all be of the same age.
fn read(reader: &mut RingReader, model: &ModelRing) -> Option<u64> {
    let record = reader.next(&model.shared()).expect("a ring in order")?;
    let payload = model.payload_word(reader.position()).load(Ordering::Relaxed);
    let tag = record.words[1];
    assert_eq!([record.words[2], record.words[3], payload], [tag; 3], "half of a record");
    reader.finish(&record);
    Some(tag)
}

/// The first record does not fit before the end of the ring.
#[test]
fn a_record_is_whole_when_it_is_seen() {
    loom::model(|| {
        let (ring, mut writer, mut reader) = ModelRing::at(RING - ALIGNMENT);
        let thread = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                assert!(write(&mut writer, &ring, 1, LONG));
                writer.publish(&ring.shared());
                assert!(write(&mut writer, &ring, 2, 0));
                writer.publish(&ring.shared());
            }
        });
        let mut seen = 0;
        for _ in 0..2 {
            reader.refresh(&ring.shared()).unwrap();
            while let Some(tag) = read(&mut reader, &ring) {
                seen += 1;
                assert_eq!(tag, seen);
            }
        }
        thread.join().unwrap();
        reader.refresh(&ring.shared()).unwrap();
        while let Some(tag) = read(&mut reader, &ring) {
            seen += 1;
            assert_eq!(tag, seen);
        }
        assert_eq!(seen, 2);
    });
}

/// The ring is full, and the writer writes over the oldest record as soon as it was read.
#[test]
fn a_record_is_not_overwritten_while_it_is_read() {
    loom::model(|| {
        let (ring, mut writer, mut reader) = ModelRing::at(0);
        for tag in 1..=LINES {
            assert!(write(&mut writer, &ring, tag, 0));
        }
        writer.publish(&ring.shared());
        reader.refresh(&ring.shared()).unwrap();
        let thread = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                let mut written = LINES;
                for _ in 0..2 {
                    writer.refresh(&ring.shared()).unwrap();
                    written += u64::from(write(&mut writer, &ring, written + 1, 0));
                    writer.publish(&ring.shared());
                }
                written
            }
        });
        for tag in 1..=2 {
            assert_eq!(read(&mut reader, &ring), Some(tag));
            reader.publish(&ring.shared());
        }
        let written = thread.join().unwrap();
        reader.refresh(&ring.shared()).unwrap();
        for tag in 3..=written {
            assert_eq!(read(&mut reader, &ring), Some(tag));
        }
        assert_eq!(read(&mut reader, &ring), None);
    });
}

/// The reader looks at the ring only when the count of news has changed. It is the thread that is
/// made last, since the model checker takes up the orders of its loads only so.
#[test]
fn nothing_is_missed_that_was_counted() {
    loom::model(|| {
        let (ring, mut writer, mut reader) = ModelRing::at(0);
        let (mut counted, mut seen) = (0, 0);
        let mut look = {
            let ring = Arc::clone(&ring);
            move || {
                let news = ring.writer_news.load(Ordering::Acquire);
                if std::mem::replace(&mut counted, news) != news {
                    reader.refresh(&ring.shared()).unwrap();
                    while read(&mut reader, &ring).is_some() {
                        seen += 1;
                    }
                }
                assert!(seen >= counted, "counted and not seen");
                seen
            }
        };
        let thread = thread::spawn(move || {
            look();
            look();
            look
        });
        for tag in 1..=2 {
            assert!(write(&mut writer, &ring, tag, 0));
            writer.publish(&ring.shared());
        }
        let mut look = thread.join().unwrap();
        assert_eq!(look(), 2);
    });
}

/// Both sides sleep: the reader of an empty ring, and the writer once it has written.
#[test]
fn no_side_sleeps_with_something_to_do() {
    loom::model(|| {
        let (ring, mut writer, mut reader) = ModelRing::at(0);
        let thread = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                write(&mut writer, &ring, 1, 0);
                writer.publish(&ring.shared());
                if SleepWord(&ring.reader_sleeps).must_ring(PeerNews { records: true, read: false })
                {
                    ring.rung_reader.store(1, Ordering::Release);
                }
                SleepWord(&ring.writer_sleeps).fall_asleep(WakeFor::Everything);
                publish_sleep();
                writer.has_news(&ring.shared())
            }
        });
        SleepWord(&ring.reader_sleeps).fall_asleep(WakeFor::Arrivals);
        publish_sleep();
        let reader_knows = reader.has_news(&ring.shared());
        if reader_knows {
            reader.refresh(&ring.shared()).unwrap();
            assert_eq!(read(&mut reader, &ring), Some(1));
            reader.publish(&ring.shared());
            if SleepWord(&ring.writer_sleeps).must_ring(PeerNews { records: false, read: true }) {
                ring.rung_writer.store(1, Ordering::Release);
            }
        }
        let writer_knows = thread.join().unwrap();
        let rung = |word: &ModelWord| word.load(Ordering::Acquire) == 1;
        assert!(reader_knows || rung(&ring.rung_reader), "the reader sleeps");
        if reader_knows {
            assert!(writer_knows || rung(&ring.rung_writer), "the writer sleeps");
        }
    });
}
