//! Bytes of a Python object that a detached call takes piece by piece.

use pyo3::prelude::*;

use crate::foreign_bytes::SourceMemory;
use crate::signal_poll::SignalPoll;

/// Memory that is read in turns of 100 ms, between which handlers of signals run.
pub(crate) struct SourcePieces {
    source: SourceMemory,
    /// Bytes that were taken.
    at: usize,
    /// Copy of the piece that was taken last: Python code may change the memory.
    piece: Vec<u8>,
    signals: SignalPoll,
}

impl SourcePieces {
    /// Returns the memory of an array or tensor, as [`SourceMemory::of`].
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let source = SourceMemory::of(object)?;
        Ok(Self { source, at: 0, piece: Vec::new(), signals: SignalPoll::new() })
    }

    pub(crate) fn length(&self) -> usize {
        self.source.length()
    }

    /// Calls a function until it has taken all bytes, and runs the handlers of signals after each
    /// call.
    ///
    /// # Errors
    /// The exception of the call or of a handler; a part of the bytes was taken then.
    pub(crate) fn take_all(
        mut self,
        py: Python<'_>,
        mut turn: impl FnMut(&mut Self) -> PyResult<()>,
    ) -> PyResult<()> {
        while self.at < self.length() {
            self.signals = SignalPoll::new();
            turn(&mut self)?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Takes the next bytes, `room` of them if there are so many. Returns their offset too, and
    /// `None` at the end of the memory or of the turn.
    pub(crate) fn next(&mut self, room: usize) -> Option<(usize, &[u8])> {
        let left = self.length() - self.at;
        if left == 0 || self.signals.is_due() {
            return None;
        }
        self.piece.resize(room.min(left), 0);
        self.source.copy_out(self.at, &mut self.piece);
        let offset = self.at;
        self.at += self.piece.len();
        Some((offset, &self.piece))
    }
}
