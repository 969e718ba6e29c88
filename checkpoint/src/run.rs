//! Execution of a procedure: the caller takes operations from it and returns their outcomes.

use std::collections::VecDeque;

use crate::error::Error;
use crate::operation::{OperationId, OperationOutcome, Request, VolumeOperation};

/// Next step of a procedure, from [`Procedure::advance`].
#[derive(Debug)]
pub enum ProcedureStep<T> {
    /// A round of requests. The procedure advances when all of them have outcomes.
    Ask(Vec<Request>),
    /// The procedure has ended with this result.
    Done(T),
}

/// Work on a namespace in rounds of operations. The operations of a round are independent.
pub trait Procedure {
    /// Result of the procedure when it succeeds.
    type Output;

    /// Takes the outcomes of the last round, in the order of its requests, and returns the next
    /// step. The first call has no outcomes.
    ///
    /// # Errors
    /// The procedure has failed, and must not be advanced again.
    fn advance(
        &mut self,
        outcomes: Vec<OperationOutcome>,
    ) -> Result<ProcedureStep<Self::Output>, Error>;
}

/// Procedure in execution. The caller calls [`Run::operation`] until it returns `None`, executes
/// the operations, passes each outcome to [`Run::complete`], and repeats that until
/// [`Run::is_finished`].
#[derive(Debug)]
pub struct Run<P: Procedure> {
    procedure: P,
    waiting: VecDeque<VolumeOperation>,
    first_id: u64,
    outcomes: Vec<Option<OperationOutcome>>,
    result: Option<Result<P::Output, Error>>,
}

impl<P: Procedure> Run<P> {
    /// Begins a procedure: operations of its first round are available.
    pub fn new(procedure: P) -> Self {
        let waiting = VecDeque::new();
        let mut run = Self { procedure, waiting, first_id: 0, outcomes: Vec::new(), result: None };
        run.advance();
        run
    }

    /// Returns the next operation to execute; `None` while others must complete first, and when
    /// the procedure has ended.
    pub fn operation(&mut self) -> Option<VolumeOperation> {
        self.waiting.pop_front()
    }

    /// Takes the outcome of an operation. An id that is not outstanding is ignored, and so is a
    /// second outcome.
    pub fn complete(&mut self, id: OperationId, outcome: OperationOutcome) {
        let index = id.0.checked_sub(self.first_id).and_then(|index| usize::try_from(index).ok());
        let Some(slot) = index.and_then(|index| self.outcomes.get_mut(index)) else { return };
        slot.get_or_insert(outcome);
        if self.outcomes.iter().all(Option::is_some) {
            self.advance();
        }
    }

    /// Whether the procedure has ended, so that [`Run::finish`] returns a result.
    pub fn is_finished(&self) -> bool {
        self.result.is_some()
    }

    /// Returns the result, `None` if the procedure has not ended.
    pub fn finish(self) -> Option<Result<P::Output, Error>> {
        self.result
    }

    fn advance(&mut self) {
        while self.result.is_none() {
            self.first_id += self.outcomes.len() as u64;
            let outcomes = std::mem::take(&mut self.outcomes).into_iter().flatten().collect();
            match self.procedure.advance(outcomes) {
                Ok(ProcedureStep::Done(output)) => self.result = Some(Ok(output)),
                Err(error) => self.result = Some(Err(error)),
                Ok(ProcedureStep::Ask(requests)) => {
                    self.outcomes = vec![None; requests.len()];
                    let ids = (self.first_id..).map(OperationId);
                    let operations = ids.zip(requests);
                    self.waiting =
                        operations.map(|(id, request)| VolumeOperation { id, request }).collect();
                    if !self.waiting.is_empty() {
                        return;
                    }
                }
            }
        }
    }
}
