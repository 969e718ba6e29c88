//! A procedure in execution: operations out, outcomes in.

use std::collections::VecDeque;

use crate::error::Error;
use crate::operation::{OperationId, OperationOutcome, Request, VolumeOperation};

/// What a procedure does next.
#[derive(Debug)]
pub enum ProcedureStep<T> {
    /// Ask for these operations, in any order, and advance with all outcomes.
    Ask(Vec<Request>),
    /// It has ended.
    Done(T),
}

/// Something that takes several rounds of operations.
pub trait Procedure {
    /// Its result.
    type Output;

    /// Goes on with the outcomes of the last round, in the order of its requests. The first round
    /// has none.
    ///
    /// # Errors
    /// Ends the procedure.
    fn advance(
        &mut self,
        outcomes: Vec<OperationOutcome>,
    ) -> Result<ProcedureStep<Self::Output>, Error>;
}

/// A procedure in execution. A caller takes operations until there are none, and completes each.
#[derive(Debug)]
pub struct Run<P: Procedure> {
    procedure: P,
    waiting: VecDeque<VolumeOperation>,
    first_id: u64,
    outcomes: Vec<Option<OperationOutcome>>,
    result: Option<Result<P::Output, Error>>,
}

impl<P: Procedure> Run<P> {
    /// Begins a procedure.
    pub fn new(procedure: P) -> Self {
        let waiting = VecDeque::new();
        let mut run = Self { procedure, waiting, first_id: 0, outcomes: Vec::new(), result: None };
        run.advance();
        run
    }

    /// The next operation to execute. None while others must complete first, and at the end.
    pub fn operation(&mut self) -> Option<VolumeOperation> {
        self.waiting.pop_front()
    }

    /// Takes the outcome of an operation. An id that is not outstanding is ignored.
    pub fn complete(&mut self, id: OperationId, outcome: OperationOutcome) {
        let index = id.0.checked_sub(self.first_id).and_then(|index| usize::try_from(index).ok());
        let Some(slot) = index.and_then(|index| self.outcomes.get_mut(index)) else { return };
        slot.get_or_insert(outcome);
        if self.outcomes.iter().all(Option::is_some) {
            self.advance();
        }
    }

    /// True if [`Run::finish`] has a result.
    pub fn is_finished(&self) -> bool {
        self.result.is_some()
    }

    /// The result. None before the end.
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
