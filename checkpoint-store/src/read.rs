//! Reads of units, which are verified.

use std::ops::ControlFlow;

use feedrail_checkpoint::ReadPlan;
use feedrail_initiator::Error;

use crate::error::StoreError;
use crate::unit_pipe::{EndedUnit, UnitPipe};

/// Why a unit has no bytes.
pub(crate) enum UnitFault {
    /// The CRC-32C of the bytes is not that of the manifest.
    Checksum,
    /// The target did not read it.
    Device(Error),
}

/// Called with the index of each piece of a plan, in any order, and the bytes that are wanted.
pub(crate) type UnitSink<'a> =
    &'a mut dyn FnMut(usize, Result<&[u8], UnitFault>) -> ControlFlow<StoreError>;

/// Reads the units of a plan, many at a time. When it returns, no read is in flight.
///
/// # Errors
/// The error of the sink, or of an allocation of registered memory.
pub(crate) fn read_pieces(
    pipe: &mut UnitPipe,
    plan: &ReadPlan,
    sink: UnitSink<'_>,
) -> Result<(), StoreError> {
    let mut waiting = plan.pieces.iter().enumerate();
    let mut result = Ok(());
    // Targets can write the registered memory at any time: what is verified is a copy.
    let mut scratch = Vec::new();
    loop {
        while result.is_ok() && waiting.len() > 0 {
            match pipe.claim() {
                Ok(Some(memory)) => {
                    let (index, piece) = waiting.next().expect("there is one left");
                    let length = piece.length.next_multiple_of(4096);
                    pipe.read(memory, piece.offset, length, index as u64);
                }
                Ok(None) => break,
                Err(error) => result = Err(error.into()),
            }
        }
        if pipe.in_flight() == 0 {
            return result;
        }
        pipe.wait();
        while let Some(ended) = pipe.next_ended() {
            if result.is_ok() {
                let index = ended.tag as usize;
                let bytes = verified(&ended, plan, &mut scratch);
                if let ControlFlow::Break(error) = sink(index, bytes) {
                    result = Err(error);
                }
            }
            pipe.release(ended);
        }
    }
}

/// Copies the bytes of a unit, and returns those that are wanted if the checksum matches.
fn verified<'a>(
    ended: &EndedUnit,
    plan: &ReadPlan,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], UnitFault> {
    ended.result.clone().map_err(UnitFault::Device)?;
    let piece = &plan.pieces[ended.tag as usize];
    scratch.resize(piece.length, 0);
    ended.bytes.copy_out(0, scratch);
    piece.verify(scratch).map_err(|_| UnitFault::Checksum)
}
