//! Reads and writes one long range in pieces, with many of them in flight.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use feedrail_initiator::{Host, Namespace};

use crate::interrupt::Interrupt;
use crate::lanes::{Done, Lanes};

const PIECE_BYTES: u64 = 512 << 10;
const DEPTH: usize = 16;

/// Range that is divided at multiples of the piece size, so that no two pieces share a block.
#[derive(Clone, Debug)]
pub(crate) struct RangePieces {
    next: u64,
    end: u64,
    piece_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangePiece {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

impl RangePieces {
    /// Divides `length_bytes` bytes from `offset_bytes` on. The sum must fit into 64 bits.
    pub(crate) fn new(offset_bytes: u64, length_bytes: u64, block_bytes: u64) -> Self {
        let end = offset_bytes + length_bytes;
        Self { next: offset_bytes, end, piece_bytes: piece_bytes(block_bytes) }
    }
}

impl Iterator for RangePieces {
    type Item = RangePiece;

    fn next(&mut self) -> Option<RangePiece> {
        let offset_bytes = self.next;
        if offset_bytes >= self.end {
            return None;
        }
        let boundary = (offset_bytes / self.piece_bytes + 1).saturating_mul(self.piece_bytes);
        self.next = boundary.min(self.end);
        Some(RangePiece { offset_bytes, length_bytes: self.next - offset_bytes })
    }
}

fn piece_bytes(block_bytes: u64) -> u64 {
    PIECE_BYTES.next_multiple_of(block_bytes.max(1))
}

/// Reads pieces ahead and passes their bytes to `sink` in order.
///
/// # Errors
/// A piece cannot be read, `sink` fails, or a signal arrived.
pub(crate) fn read(
    host: &Host,
    namespace: Namespace,
    mut pieces: RangePieces,
    interrupt: &Interrupt,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut lanes = Lanes::new(host, vec![namespace], DEPTH, pieces.piece_bytes as usize)?;
    // Pieces in the order of the range, from the first that `sink` has not received; `Some` once
    // they have been read.
    let mut window: VecDeque<Option<Done<u64>>> = VecDeque::with_capacity(DEPTH);
    let mut seen = 0;
    let mut scratch = Vec::new();
    loop {
        interrupt.check()?;
        while let Some(lane) = lanes.claim() {
            let Some(RangePiece { offset_bytes, length_bytes }) = pieces.next() else {
                lanes.put_back(lane);
                break;
            };
            let number = seen + window.len() as u64;
            window.push_back(None);
            lanes.read(lane, offset_bytes, length_bytes as usize, number);
        }
        if window.is_empty() {
            return Ok(());
        }
        lanes.wait();
        while let Some(done) = lanes.next_done() {
            let index = (done.tag - seen) as usize;
            window[index] = Some(done);
        }
        while let Some(Some(_)) = window.front() {
            let done = window.pop_front().flatten().expect("just looked at");
            seen += 1;
            done.result.clone()?;
            scratch.resize(done.bytes.len(), 0);
            done.bytes.copy_out(0, &mut scratch);
            sink(&scratch)?;
            lanes.release(done);
        }
    }
}

/// Writes the bytes that `source` fills in, until it fills a piece only in part. Returns the bytes
/// written. `done` is called with the length of each piece that was written.
///
/// # Errors
/// A write fails, `source` fails, or a signal arrived. Then no further piece is started, those in
/// flight end, and the error says which bytes are known to be written.
pub(crate) fn write(
    host: &Host,
    namespace: Namespace,
    mut pieces: RangePieces,
    interrupt: &Interrupt,
    source: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    done: &mut dyn FnMut(u64),
) -> Result<u64> {
    let mut lanes = Lanes::new(host, vec![namespace], DEPTH, pieces.piece_bytes as usize)?;
    let mut scratch = vec![0; pieces.piece_bytes as usize];
    let mut outcome = WriteOutcome { begin: pieces.next, written: 0, failed: None, stopped: None };
    let mut ended = false;
    loop {
        if let Err(interrupted) = interrupt.check() {
            outcome.stop(interrupted.into());
        }
        while !ended
            && !outcome.is_failure()
            && let Some(mut lane) = lanes.claim()
        {
            let next = pieces.next();
            let room = next.map_or(0, |piece| piece.length_bytes as usize);
            let filled = match room {
                0 => Ok(0),
                room => source(&mut scratch[..room]),
            };
            let filled = filled.unwrap_or_else(|error| {
                outcome.stop(error);
                0
            });
            lane.memory.copy_in(0, &scratch[..filled]);
            ended = filled < room || next.is_none();
            match next {
                Some(RangePiece { offset_bytes, .. }) if filled > 0 => {
                    let piece = RangePiece { offset_bytes, length_bytes: filled as u64 };
                    lanes.write(lane, offset_bytes, filled, piece);
                }
                _ => lanes.put_back(lane),
            }
        }
        if lanes.in_flight() == 0 {
            return outcome.conclude();
        }
        lanes.wait();
        while let Some(ended) = lanes.next_done() {
            if ended.result.is_ok() {
                done(ended.tag.length_bytes);
            }
            outcome.add(ended.tag, ended.result.clone());
            lanes.release(ended);
        }
    }
}

struct WriteOutcome {
    begin: u64,
    written: u64,
    /// The failed piece with the lowest offset.
    failed: Option<(RangePiece, feedrail_initiator::Error)>,
    /// Error or signal that stopped the write before the end of the input.
    stopped: Option<anyhow::Error>,
}

impl WriteOutcome {
    /// Stores the error, unless one is stored already.
    fn stop(&mut self, why: anyhow::Error) {
        self.stopped.get_or_insert(why);
    }

    fn is_failure(&self) -> bool {
        self.failed.is_some() || self.stopped.is_some()
    }

    fn add(&mut self, piece: RangePiece, result: Result<(), feedrail_initiator::Error>) {
        match result {
            Ok(()) => self.written += piece.length_bytes,
            Err(error) if self.failed.as_ref().is_none_or(|(first, _)| piece < *first) => {
                self.failed = Some((piece, error));
            }
            Err(_) => {}
        }
    }

    fn conclude(self) -> Result<u64> {
        let good = match &self.failed {
            Some((piece, _)) => piece.offset_bytes - self.begin,
            None => self.written,
        };
        let error = match (self.failed, self.stopped) {
            (Some((_, error)), _) => error.into(),
            (None, Some(error)) => error,
            (None, None) => return Ok(self.written),
        };
        let beyond = self.written - good;
        Err(error).with_context(|| match (good, beyond) {
            (0, 0) => "nothing was written".to_owned(),
            (good, 0) => format!("only the first {good} bytes were written, and not flushed"),
            (good, beyond) => {
                format!("the first {good} bytes were written, and {beyond} after the gap")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::interrupt::Interrupted;

    proptest! {
        #[test]
        fn pieces_cover_the_range_and_share_no_block(
            offset in 0_u64..1 << 40,
            length in 0_u64..20 << 20,
            block_shift in 9_u32..17,
        ) {
            let block = 1 << block_shift;
            let mut next = offset;
            for piece in RangePieces::new(offset, length, block) {
                prop_assert_eq!(piece.offset_bytes, next);
                prop_assert!((1..=piece_bytes(block)).contains(&piece.length_bytes));
                prop_assert!(next == offset || next % block == 0);
                next += piece.length_bytes;
            }
            prop_assert_eq!(next, offset + length);
        }
    }

    #[test]
    fn pieces_near_the_largest_offset() {
        let pieces: Vec<RangePiece> = RangePieces::new(u64::MAX - 10, 10, 512).collect();
        assert_eq!(pieces, [RangePiece { offset_bytes: u64::MAX - 10, length_bytes: 10 }]);
    }

    #[test]
    fn a_failed_write_says_what_is_known() {
        let piece = |offset_bytes| RangePiece { offset_bytes, length_bytes: 10 };
        let error = || feedrail_initiator::ErrorKind::Closed.into();
        let mut outcome = WriteOutcome { begin: 100, written: 0, failed: None, stopped: None };
        outcome.add(piece(100), Ok(()));
        outcome.add(piece(120), Err(error()));
        outcome.add(piece(130), Ok(()));
        outcome.add(piece(110), Err(error()));
        let text = format!("{:#}", outcome.conclude().unwrap_err());
        assert!(
            text.starts_with("the first 10 bytes were written, and 10 after the gap: "),
            "{text}"
        );
    }

    #[test]
    fn a_stopped_write_says_what_is_written() {
        let mut outcome = WriteOutcome { begin: 100, written: 0, failed: None, stopped: None };
        outcome.add(RangePiece { offset_bytes: 100, length_bytes: 10 }, Ok(()));
        outcome.stop(Interrupted.into());
        let error = outcome.conclude().unwrap_err();
        assert!(error.is::<Interrupted>());
        let text = format!("{error:#}");
        assert_eq!(text, "only the first 10 bytes were written, and not flushed: interrupted");
    }
}
