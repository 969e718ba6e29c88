//! Rewriting of units that are damaged on one replica.

use super::{Volume, all_done, data};
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::operation::{OperationOutcome, Request, WritePayload};
use crate::run::{Procedure, ProcedureStep};
use crate::volume::ReadPiece;

/// Procedure that writes a unit of a committed entry again, with Force Unit Access, and reads it
/// back. If it is interrupted, the unit has the bytes of before or of after, or is damaged.
#[derive(Debug)]
pub struct Rewriting {
    piece: ReadPiece,
    state: State,
}

#[derive(Debug)]
enum State {
    Begin { padded: Vec<u8> },
    Written,
    ReadBack,
}

impl Volume {
    /// Returns the procedure that rewrites the unit of an entry which begins at `offset`, with the
    /// bytes that another replica has.
    ///
    /// # Errors
    /// [`Error::NoLease`] without a live lease; [`Error::Missing`] for an unknown name;
    /// [`Error::Range`] for more or fewer bytes than those of one unit; [`Error::Damaged`] if the
    /// bytes do not have its checksum, and when the unit does not have it afterwards.
    pub fn rewrite(
        &self,
        checkpoint: &str,
        entry: &str,
        offset: u64,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<Rewriting, Error> {
        self.live_lease(now_ms)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Error::Range)?;
        let mut pieces = self.read_plan(checkpoint, entry, offset..end)?.pieces;
        let piece =
            pieces.pop().filter(|piece| pieces.is_empty() && piece.wanted.len() == piece.length);
        let piece = piece.ok_or(Error::Range)?;
        if !deliberate_bugs::has(Bug::RewriteUnverified) {
            piece.verify(bytes)?;
        }
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4096), 0);
        Ok(Rewriting { piece, state: State::Begin { padded } })
    }
}

impl Procedure for Rewriting {
    type Output = ();

    fn advance(&mut self, outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<()>, Error> {
        let offset = self.piece.offset;
        match std::mem::replace(&mut self.state, State::ReadBack) {
            State::Begin { padded } => {
                self.state = State::Written;
                let fua = !deliberate_bugs::has(Bug::RewriteInCache);
                let payload = WritePayload::Bytes(padded);
                Ok(ProcedureStep::Ask(vec![Request::Write { offset, payload, fua }]))
            }
            State::Written => {
                all_done(outcomes)?;
                let length = self.piece.length.next_multiple_of(4096) as u64;
                Ok(ProcedureStep::Ask(vec![Request::Read { offset, length }]))
            }
            State::ReadBack => {
                for outcome in outcomes {
                    self.piece.verify(&data(outcome)?)?;
                }
                Ok(ProcedureStep::Done(()))
            }
        }
    }
}
