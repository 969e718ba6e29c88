//! Requests that wait for the next turn of an engine.

use crate::engine::arena::{ControllerKey, RangeKey, RunKey};
use crate::engine::computation::Computed;
use crate::engine::raw::Raw;
use crate::engine::reply::Promise;

/// Requests that were queued between two turns, when the engine does not know the time.
#[derive(Default)]
pub(crate) struct Fresh {
    pub(crate) ops: Vec<RangeKey>,
    pub(crate) runs: Vec<RunKey>,
    pub(crate) raws: Vec<(ControllerKey, Raw)>,
    pub(crate) closings: Vec<ControllerKey>,
    pub(crate) authentications: Vec<(ControllerKey, Promise<()>)>,
    pub(crate) computed: Vec<Computed>,
}
